"""Tensors in memory that the ranks of a host share, once for all frameworks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from horocache.collectives.tensor_adapter import TensorAdapter
from horocache.core import context
from horocache.errors import InvalidArgumentError

T = TypeVar("T")


class SharedMemory(Generic[T]):
    """Makes tensors on which collectives work in place, without a copy.

    A base of :class:`horocache.collectives.operations.Collectives`.
    """

    adapter: TensorAdapter[T]

    def empty_shared(self, shape: int | Sequence[int], dtype: Any = None) -> T:
        """Return a new tensor in memory that the ranks of this host share; its values are undefined.

        An in-place allreduce of such tensors, or of adjacent parts of them, moves each byte once: every rank reads its
        share of all ranks' tensors where they are, and stores the result in all of them. The tensors of all ranks must
        be such tensors; otherwise the same operation copies, and the result has the same bits.

        Args:
            shape: the extents, or one number for a vector.
            dtype: the element type; None is the framework's default, float32.

        Returns:
            A contiguous tensor. Its memory stays readable after ``shutdown()``, and is freed with the last tensor on
            it; shared memory is allocated in whole pages. A child of fork() has a copy of its own. If no more memory
            can be shared (``HOROCACHE_REGION_BYTES``, or the memory of the host), the tensor has private memory, of
            which the rank warns once. In a job of one rank, the memory is always private.

        Raises:
            InvalidArgumentError: an extent is negative, or the element type cannot be sent. NotInitializedError: before
                ``init()``. HorocacheError: memory ran out.
        """
        runtime = context.current().runtime
        if isinstance(dtype, int):
            raise InvalidArgumentError(f"{dtype} is not an element type; pass a shape of several extents as one tuple.")
        return self.adapter.from_result(runtime.empty(_extents(shape), self.adapter.dtype_name(dtype)))

    empty = empty_shared

    def is_shared(self, tensor: T) -> bool:
        """True if the tensor lies in memory of :meth:`empty_shared` that the other ranks of this host share."""
        part: Any = tensor
        if getattr(tensor, "ndim", 0):
            part = part[(slice(0, 1),) * part.ndim]  # one element, which is contiguous for any strides
        shared: bool = context.current().runtime.is_shared(part)
        return shared


def _extents(shape: Any) -> list[int]:
    try:
        return [operator.index(extent) for extent in ([shape] if isinstance(shape, int) else shape)]
    except TypeError as error:
        raise InvalidArgumentError(f"{shape!r} is not a shape.") from error
