"""Compressors for torch tensors, with Horovod's interface."""

from __future__ import annotations

from typing import Any, ClassVar, TypeGuard

import torch


class Compressor:
    """Base of the compressors: two static methods, and the name that the ranks compare."""

    wire_name: ClassVar[str]

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What to send, and a context for :meth:`decompress`."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The values in the original element type."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    wire_name = ""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor itself."""
        return tensor


class CastCompressor(Compressor):
    """Base of the compressors that send float32 and float64 in a smaller type; other tensors travel as they are."""

    wire_dtype: ClassVar[torch.dtype]

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor in its own precision."""
        return tensor if ctx is None else tensor.to(ctx)


def is_cast(compressor: Any) -> TypeGuard[CastCompressor | type[CastCompressor]]:
    """Whether it only changes the element type."""
    return issubclass(compressor if isinstance(compressor, type) else type(compressor), CastCompressor)


def wire_dtype_of(dtype: torch.dtype, compressor: Any) -> torch.dtype:
    """The element type in which a cast compressor sends ``dtype``."""
    if is_cast(compressor) and dtype in (torch.float32, torch.float64):
        return compressor.wire_dtype
    return dtype


class FP16Compressor(CastCompressor):
    """Sends float32 and float64 as float16; values beyond 65504 become infinite."""

    wire_name = "fp16"
    wire_dtype = torch.float16

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor in half precision, and its dtype."""
        return _cast(tensor, FP16Compressor)


class BF16Compressor(CastCompressor):
    """Sends float32 and float64 as bfloat16: the range of float32 with 8 bits of precision."""

    wire_name = "bf16"
    wire_dtype = torch.bfloat16

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor in bfloat16, and its dtype."""
        return _cast(tensor, BF16Compressor)


def _cast(tensor: torch.Tensor, compressor: type[CastCompressor]) -> tuple[torch.Tensor, Any]:
    wire_dtype = wire_dtype_of(tensor.dtype, compressor)
    if wire_dtype is tensor.dtype:
        return tensor, None
    return tensor.to(wire_dtype), tensor.dtype


class Compression:
    """The compressors, by Horovod's names."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
