"""Base classes of the compressors of all frameworks, with Horovod's interface."""

from __future__ import annotations

from typing import Any, ClassVar, TypeGuard


class Compressor:
    """Base of the compressors: two class methods, and the name that the ranks compare."""

    wire_name: ClassVar[str]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and a context for :meth:`decompress`."""
        raise NotImplementedError(f"{cls.__name__} defines no compress().")

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return the values in their original element type."""
        raise NotImplementedError(f"{cls.__name__} defines no decompress().")


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    wire_name = ""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor itself."""
        return tensor, None

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return the tensor itself."""
        return tensor


class CastCompressor(Compressor):
    """Base of the compressors that send float32 and float64 in a smaller type; other tensors are sent unchanged.

    A framework derives a base class of its own, which defines ``wide`` and ``cast``.
    """

    wide: ClassVar[frozenset[Any]]  # the element types float32 and float64
    wire_dtype: ClassVar[Any]

    @classmethod
    def cast(cls, tensor: Any, dtype: Any) -> Any:
        """Return the values in another element type."""
        raise NotImplementedError(f"{cls.__name__} defines no cast().")

    @classmethod
    def wire_dtype_of(cls, dtype: Any) -> Any:
        """Return the element type in which tensors of ``dtype`` are sent."""
        return cls.wire_dtype if dtype in cls.wide else dtype

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in the smaller type, and its own type."""
        if tensor.dtype not in cls.wide:
            return tensor, None
        return cls.cast(tensor, cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its own type."""
        return tensor if ctx is None else cls.cast(tensor, ctx)


def is_cast(compressor: Any) -> TypeGuard[CastCompressor | type[CastCompressor]]:
    """True if the compressor only changes the element type."""
    return issubclass(compressor if isinstance(compressor, type) else type(compressor), CastCompressor)
