"""What the compressors of all frameworks have in common; Horovod's interface, see :mod:`horocache.collectives.transforms`."""

from __future__ import annotations

from typing import Any, ClassVar, TypeGuard


class Compressor:
    """Base of the compressors: two functions of the class, and the name that the ranks compare."""

    wire_name: ClassVar[str]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """What to send, and a context for :meth:`decompress`."""
        raise NotImplementedError(f"{cls.__name__} defines no compress().")

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The values in the original element type."""
        raise NotImplementedError(f"{cls.__name__} defines no decompress().")


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    wire_name = ""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor itself."""
        return tensor, None

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The tensor itself."""
        return tensor


class CastCompressor(Compressor):
    """Base of the compressors that send float32 and float64 in a smaller type; other tensors travel as they are.

    A framework derives its base from this one, with ``wide`` and ``cast``.
    """

    wide: ClassVar[frozenset[Any]]  # float32 and float64
    wire_dtype: ClassVar[Any]

    @classmethod
    def cast(cls, tensor: Any, dtype: Any) -> Any:
        """The values in another element type."""
        raise NotImplementedError(f"{cls.__name__} defines no cast().")

    @classmethod
    def wire_dtype_of(cls, dtype: Any) -> Any:
        """The element type in which tensors of ``dtype`` are sent."""
        return cls.wire_dtype if dtype in cls.wide else dtype

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The tensor in the smaller type, and its own type."""
        if tensor.dtype not in cls.wide:
            return tensor, None
        return cls.cast(tensor, cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The tensor in its own precision."""
        return tensor if ctx is None else cls.cast(tensor, ctx)


def is_cast(compressor: Any) -> TypeGuard[CastCompressor | type[CastCompressor]]:
    """Whether it only changes the element type."""
    return issubclass(compressor if isinstance(compressor, type) else type(compressor), CastCompressor)
