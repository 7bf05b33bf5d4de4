"""Base classes of the compressors of all frameworks.

There are two kinds. A *compressor* has Horovod's interface: it converts a tensor to another tensor, which the core
reduces. A *codec* encodes a tensor to bytes, which cannot be added: every rank gets the bytes of all ranks, decodes
them and adds the decoded tensors (:mod:`horocache.collectives.encoded_sum`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar, TypeGuard

import numpy as np
import numpy.typing as npt

from horocache.core import context
from horocache.errors import InvalidArgumentError, UnsupportedError

Array = npt.NDArray[Any]


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


FLOATS = ("float16", "bfloat16", "float32", "float64")
"""The element types that a codec can take."""


class Codec:
    """Base of the codecs: frozen dataclasses whose fields are the parameters.

    A codec works on arrays of float32 or float64 in the host's memory: the values of float16 and bfloat16 tensors are
    converted to float32. The bytes of :meth:`encode` reach every rank unchanged or not at all: the caller adds a
    checksum, the shape and the type, and checks them before it calls :meth:`decode`. Tensors of other types than
    ``dtypes`` are sent uncompressed.

    Role: immutable; used by any thread.
    """

    name: ClassVar[str]  # as in Compression.NAME
    dtypes: ClassVar[frozenset[str]] = frozenset(FLOATS)  # of the tensors that are encoded
    error_feedback: ClassVar[bool] = False  # see Note [Error feedback] in horocache/base/residuals.py

    @property
    def wire_name(self) -> str:
        """The name and the parameters, which the ranks compare, such as ``zfp(tolerance=0.001)``."""
        given = ((each.name, getattr(self, each.name)) for each in fields(self))  # type: ignore[arg-type]
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in given if value is not None)})"

    def encode(self, values: Array) -> Sequence[bytes | memoryview | Array] | None:
        """Return the encoded values, in parts that follow each other.

        Args:
            values: float32 or float64 in C order, of any shape; not empty. Not modified. May have NaN and infinities.

        Returns:
            Bytes, or contiguous arrays; None if the values should be sent as they are. They are also sent as they are
            if that takes no more bytes.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no encode().")

    def decode(self, data: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new array with the decoded values.

        Args:
            data: the parts that :meth:`encode` returned on some rank, joined.
            shape: the shape of the values.
            dtype: their type, float32 or float64.

        Raises:
            ValueError: ``data`` is not what :meth:`encode` returns for that shape and type.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no decode().")

    @staticmethod
    def clear_residuals(name: str | bytes | None = None) -> None:
        """Forget the residuals of this process: the parts of tensors that earlier messages left out.

        Every rank should do so between the same two operations. Residuals are also forgotten by ``shutdown()``, with
        their process set, with their optimizer, and by the optimizer's ``load_state_dict()``.

        Args:
            name: the name of the tensor, group or parameter; None: all residuals, including those of optimizers.

        Raises:
            NotInitializedError: before ``init()``.
        """
        context.current().residuals.forget(name)

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """Raise UnsupportedError: a codec has no tensor that could be reduced."""
        raise UnsupportedError(_where(self))

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Raise UnsupportedError."""
        raise UnsupportedError(_where(self))


def is_codec(compressor: Any) -> TypeGuard[Codec]:
    """True if the compressor is a codec, with its parameters."""
    return isinstance(compressor, Codec)


def refuse_codec(compressor: Any) -> None:
    """Raise an error if the compressor is a codec, for calls that take only other compressors.

    Raises:
        UnsupportedError: it is a codec. InvalidArgumentError: it is the class of a codec, without parameters.
    """
    if isinstance(compressor, type) and issubclass(compressor, Codec):
        raise InvalidArgumentError(
            f"{compressor.__name__} is a class of codecs, which lacks its parameters. Call it, for example "
            "Compression.zfp(tolerance=1e-3), Compression.int8() or Compression.topk(ratio=0.01)."
        )
    if is_codec(compressor):
        raise UnsupportedError(_where(compressor))


def _where(codec: Codec) -> str:
    return (
        f"Compression.{codec.wire_name} encodes a tensor to bytes, which cannot be reduced here: only allreduce of "
        "horocache and horocache.torch, with op=Sum or Average, and horocache.torch.DistributedOptimizer take it. Use "
        "Compression.fp16 or Compression.bf16, or one of these."
    )
