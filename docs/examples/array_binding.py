"""The collectives on arrays of Python's standard library, as an example of a binding for a framework.

``docs/explanation/adding_a_framework.md`` explains it step by step. With this file in the path of Python::

    import array_binding as hvd

    hvd.init()
    total = hvd.allreduce(array("d", [1.0, 2.0]), op=hvd.Sum)

Run it on two ranks: ``horocacherun -np 2 python docs/examples/array_binding.py``.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from horocache import common_api
from horocache.collectives.api import Collectives, Handle, barrier, join, poll, synchronize
from horocache.collectives.operations import NAMES
from horocache.common_api import *  # noqa: F403
from horocache.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from horocache._core import Result

Array: TypeAlias = "array[Any]"

# The core's name of the elements of each type code. The size of "l" depends on the platform.
DTYPES = {"f": "float32", "d": "float64", "i": "int32", "q": "int64", "l": f"int{8 * array('l').itemsize}"}
_CODES = {"float32": "f", "float64": "d", "int32": "i", "int64": "q"}


class ArrayAdapter:
    """The tensor adapter for ``array.array``: vectors of float32, float64, int32 and int64.

    The core reads an array by the buffer protocol. The array must not change its length while it is in flight.
    """

    plain_type: type | None = array

    def check(self, value: Any) -> Array:
        """Return the array itself."""
        if not isinstance(value, array):
            raise InvalidArgumentError(
                f"expected an array.array, got {type(value).__module__}.{type(value).__qualname__}."
            )
        if value.typecode not in DTYPES:
            known = ", ".join(f"{code!r} ({name})" for code, name in DTYPES.items())
            raise UnsupportedError(f"arrays of type {value.typecode!r} cannot be sent; there are {known}.")
        return value

    def as_is(self, value: Any, writable: bool) -> bool:
        """True for every array of a known type: all of them are contiguous and writable."""
        return type(value) is array and value.typecode in DTYPES

    def check_writable(self, tensor: Array) -> None:
        """Accept every array: all of them are writable."""

    def shape(self, tensor: Array) -> tuple[int, ...]:
        """Return the length, the only dimension."""
        return (len(tensor),)

    def dense(self, tensor: Array) -> tuple[Array, bool]:
        """Return the array itself: every array is contiguous."""
        return tensor, False

    def empty_like(self, tensor: Array) -> Array:
        """Return a new array of the same type and length."""
        return array(tensor.typecode, bytes(len(tensor) * tensor.itemsize))

    def on_host(self, tensor: Array, values: bool) -> Array:
        """Return the array: there is no other memory."""
        return tensor

    def copy_into(self, target: Array, source: Array) -> None:
        """Store the values of ``source`` in ``target``; "l" and "q" may be two codes of one element type."""
        target[:] = array(target.typecode, source.tobytes())

    def written(self, tensor: Array, answer: object = None) -> Array:
        """Return the array. Arrays have no version counter to update."""
        return tensor

    def all_written(self, tensors: Sequence[Array], answer: object = None) -> list[Array]:
        """Return the arrays. Arrays have no version counter to update."""
        return list(tensors)

    def floating(self, tensor: Array) -> bool:
        """Refuse Adasum, the only caller: it computes with tensors, and arrays have no arithmetic."""
        raise UnsupportedError("Adasum needs arithmetic on tensors, which array.array lacks. Use Average or Sum.")

    def float_type(self, tensor: Array) -> str:
        """Return the core's name of a floating-point type; only compression asks."""
        return DTYPES[tensor.typecode] if tensor.typecode in "fd" else ""

    def to_numpy(self, tensor: Array) -> Any:
        """Return a NumPy array on the array's memory."""
        return np.asarray(tensor)

    def store_numpy(self, target: Array, values: Any) -> None:
        """Store the values of a NumPy array of the same type."""
        target[:] = array(target.typecode, values.tobytes())

    def dot(self, a: Array, b: Array) -> float:
        """Return the scalar product."""
        return float(sum(x * y for x, y in zip(a, b, strict=True)))

    def as_rows(self, tensor: Array) -> Array:
        """Return the array itself: a row is an element, and an array is never a scalar."""
        return tensor

    def first_rows(self, tensor: Array, rows: int) -> Array:
        """Return the first elements. It is a copy, which is enough to send them."""
        return tensor if rows == len(tensor) else tensor[:rows]

    def from_result(self, result: Result) -> Array:
        """Return an array with the values of the core's memory. It is a copy: an array always owns its memory."""
        view: Any = result  # exports the buffer protocol
        return array(_CODES[result.dtype], memoryview(view).tobytes())

    def dtype_name(self, dtype: Any) -> str:
        """Return the core's name of a type code; None is float32."""
        return DTYPES["f" if dtype is None else dtype]

    def integers(self, values: Sequence[int]) -> Array:
        """Return an array of int32."""
        return array("i", values)


collectives: Collectives[Array] = Collectives(ArrayAdapter())

# Left out: forms that store rows through a slice of the tensor (a slice of an array is a copy), and memory that ranks
# share (an array always owns its memory).
_LEFT_OUT = re.compile(r"(grouped_)?(allgather|reducescatter)(_async)?_|empty|empty_shared|is_shared")
_COLLECTIVES = [name for name in NAMES if not _LEFT_OUT.fullmatch(name)]
globals().update({name: getattr(collectives, name) for name in _COLLECTIVES})

__all__ = list(_COLLECTIVES)
__all__ += ["Handle", "barrier", "join", "poll", "synchronize"]
__all__ += common_api.__all__


def main() -> None:
    """Add the arrays of all ranks."""
    common_api.init()
    rank = common_api.rank()
    total = collectives.allreduce(array("d", [rank, 1.0]), op=common_api.Sum)
    print(f"rank {rank} of {common_api.size()}: {total.tolist()}")
    common_api.shutdown()


if __name__ == "__main__":
    main()
