"""Compressors for JAX arrays, with Horovod's interface."""

from __future__ import annotations

from typing import Any

import numpy as np

import jax.numpy as jnp
from horocache.collectives.compression import CastCompressor, NoneCompressor


class _JaxCast(CastCompressor):
    wide = frozenset((np.dtype(np.float32), np.dtype(np.float64)))

    @classmethod
    def cast(cls, tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class FP16Compressor(_JaxCast):
    """Sends float32 and float64 as float16; values beyond 65504 become infinite."""

    wire_name = "fp16"
    wire_dtype = np.dtype(np.float16)


class BF16Compressor(_JaxCast):
    """Sends float32 and float64 as bfloat16: the range of float32 with 8 bits of precision."""

    wire_name = "bf16"
    wire_dtype = np.dtype(jnp.bfloat16)


class Compression:
    """The compressors, by Horovod's names."""

    none: Any = NoneCompressor
    fp16: Any = FP16Compressor
    bf16: Any = BF16Compressor
