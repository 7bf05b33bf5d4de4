"""Compressors for torch tensors, with Horovod's interface."""

from __future__ import annotations

from typing import Any

import torch
from horocache.collectives.codecs import Int8, TopK, Zfp
from horocache.collectives.compression import CastCompressor, NoneCompressor


class _TorchCast(CastCompressor):
    wide = frozenset((torch.float32, torch.float64))

    @classmethod
    def cast(cls, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


class FP16Compressor(_TorchCast):
    """Sends float32 and float64 as float16; values beyond 65504 become infinite."""

    wire_name = "fp16"
    wire_dtype = torch.float16


class BF16Compressor(_TorchCast):
    """Sends float32 and float64 as bfloat16: the range of float32 with 8 bits of precision."""

    wire_name = "bf16"
    wire_dtype = torch.bfloat16


class Compression:
    """The compressors: ``none``, ``fp16`` and ``bf16`` as Horovod has them, and codecs, which take parameters.

    A codec, such as ``Compression.zfp(tolerance=1e-3)``, is for allreduce with Sum or Average and for
    ``DistributedOptimizer``. It works in the host's memory, also on CUDA tensors. All compressors keep NaN and
    infinities.
    """

    none: Any = NoneCompressor
    fp16: Any = FP16Compressor
    bf16: Any = BF16Compressor
    zfp: Any = Zfp
    int8: Any = Int8
    topk: Any = TopK
