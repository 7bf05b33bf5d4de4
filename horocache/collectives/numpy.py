"""NumPy arrays: the adapter, the functions of the package, and compression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from horocache.collectives.api import Collectives
from horocache.collectives.codecs import Int8, TopK, Zfp
from horocache.collectives.compression import Array, CastCompressor, Compressor, NoneCompressor
from horocache.errors import InvalidArgumentError, UnsupportedError, no_memory_for

if TYPE_CHECKING:
    from horocache._core import Result

# The element types that both the core and NumPy have; NumPy has no bfloat16.
_NAMES = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bool",
)
_BYTES_OF_16_BITS = 2
DTYPES = frozenset(np.dtype(name) for name in _NAMES)


class NumpyAdapter:
    """The tensor adapter for ``numpy.ndarray``; scalars and nested lists are converted to arrays."""

    def check(self, value: Any) -> Array:
        """Return the array for the caller's value."""
        if not isinstance(value, np.ndarray):
            if not isinstance(value, (np.generic, bool, int, float, complex, list, tuple)):
                raise InvalidArgumentError(
                    f"expected a NumPy array, got {type(value).__module__}.{type(value).__qualname__}."
                )
            value = np.asarray(value)
        if isinstance(value, np.ma.MaskedArray):
            raise UnsupportedError("a masked array would lose its mask; pass its data and its mask, or array.filled().")
        if value.dtype.newbyteorder("=") not in DTYPES:
            names = ", ".join(sorted(str(dtype) for dtype in DTYPES))
            raise UnsupportedError(f"arrays of dtype {value.dtype} cannot be sent; there are {names}.")
        array: Array = value
        return array

    plain_type: type | None = np.ndarray

    def as_is(self, value: Any, writable: bool) -> bool:
        """True if the core can read and, if ``writable``, write the array where it is."""
        if type(value) is not np.ndarray or value.dtype not in DTYPES:
            return False
        flags = value.flags
        return bool(flags.c_contiguous and (flags.writeable or not writable))

    def check_writable(self, tensor: Array) -> None:
        """Raise InvalidArgumentError if the array is read-only."""
        if not tensor.flags.writeable:
            raise InvalidArgumentError(
                "the array is read-only, so an in-place operation cannot store its result in it."
            )

    def shape(self, tensor: Array) -> tuple[int, ...]:
        """Return the dimensions."""
        return tensor.shape

    def dense(self, tensor: Array) -> tuple[Array, bool]:
        """Return the array, or a copy if it is not in C order and native byte order; and True for a copy."""
        if tensor.flags.c_contiguous and tensor.dtype.isnative:
            return tensor, False
        # Not ascontiguousarray, which converts a scalar to a vector.
        try:
            return np.array(tensor, dtype=tensor.dtype.newbyteorder("="), order="C", copy=True), True
        except MemoryError:
            raise no_memory_for(tensor.nbytes) from None

    def empty_like(self, tensor: Array) -> Array:
        """Return a new array in C order."""
        try:
            return np.empty(tensor.shape, tensor.dtype)
        except MemoryError:
            raise no_memory_for(tensor.nbytes) from None

    def on_host(self, tensor: Array, values: bool) -> Array:
        """Return the array."""
        return tensor

    def copy_into(self, target: Array, source: Array) -> None:
        """Store the values of ``source`` in ``target``."""
        target[...] = source

    def written(self, tensor: Array, answer: object = None) -> Array:
        """Return the array. NumPy arrays have no version counter to update."""
        return tensor

    def all_written(self, tensors: Sequence[Array], answer: object = None) -> list[Array]:
        """Return the arrays. NumPy arrays have no version counter to update."""
        return list(tensors)

    def floating(self, tensor: Array) -> bool:
        """True if the elements are real floating-point numbers."""
        return tensor.dtype.kind == "f"

    def float_type(self, tensor: Array) -> str:
        """Return the name of the element type, if it is a real floating-point type."""
        return tensor.dtype.name if self.floating(tensor) else ""

    def to_numpy(self, tensor: Array) -> Array:
        """Return the array, or a copy as float32 of an array of 16-bit floats."""
        return tensor if tensor.dtype.itemsize > _BYTES_OF_16_BITS else tensor.astype(np.float32)

    def store_numpy(self, target: Array, values: Array) -> None:
        """Store the values of ``values`` in ``target``; float16 becomes infinite beyond 65504."""
        target[...] = values

    def dot(self, a: Array, b: Array) -> float:
        """Return the scalar product, in float64."""
        return float(np.vdot(a.astype(np.float64), b.astype(np.float64)))

    def as_rows(self, tensor: Array) -> Array:
        """Return the array itself, or one row for a scalar."""
        return tensor if tensor.ndim else tensor.reshape(1)

    def first_rows(self, tensor: Array, rows: int) -> Array:
        """Return the first rows, which share the array's memory."""
        return tensor if rows == tensor.shape[0] else tensor[:rows]

    def from_result(self, result: Result) -> Array:
        """Return an array on the core's memory, by the buffer protocol."""
        return np.asarray(result)

    def dtype_name(self, dtype: Any) -> str:
        """Return NumPy's name of the type. None is float32, the usual type of gradients, not NumPy's float64."""
        return np.dtype(np.float32 if dtype is None else dtype).name

    def integers(self, values: Sequence[int]) -> Array:
        """Return an int32 vector."""
        return np.array(values, dtype=np.int32)


class FP16Compressor(CastCompressor):
    """Sends float32 and float64 as float16; values beyond 65504 become infinite. Other arrays are sent unchanged."""

    wire_name = "fp16"
    wire_dtype = np.dtype(np.float16)
    wide = frozenset((np.dtype(np.float32), np.dtype(np.float64)))

    @classmethod
    def cast(cls, tensor: Array, dtype: np.dtype[Any]) -> Array:
        """Return the array in another element type."""
        return np.asarray(tensor.astype(dtype))


class BF16Compressor(Compressor):
    """Raises UnsupportedError in every use, because NumPy has no bfloat16. ``horocache.torch`` supports it."""

    wire_name = "bf16"

    @classmethod
    def compress(cls, tensor: Array) -> tuple[Array, Any]:
        """Raise UnsupportedError."""
        raise UnsupportedError("NumPy has no bfloat16; use Compression.fp16, or horocache.torch.")

    @classmethod
    def decompress(cls, tensor: Array, ctx: Any) -> Array:
        """Never called, because :meth:`compress` always raises an error."""
        return tensor


class Compression:
    """The compressors: ``none``, ``fp16`` and ``bf16`` as Horovod has them, and codecs, which take parameters.

    A codec, such as ``Compression.zfp(tolerance=1e-3)``, is for allreduce with Sum or Average. All compressors keep NaN
    and infinities.
    """

    none: Any = NoneCompressor
    fp16: Any = FP16Compressor
    bf16: Any = BF16Compressor
    zfp: Any = Zfp
    int8: Any = Int8
    topk: Any = TopK


collectives: Collectives[Array] = Collectives(NumpyAdapter())
