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
    """Makes tensors that collectives work on where they are.

    See :class:`horocache.collectives.api.Collectives`.
    """

    adapter: TensorAdapter[T]

    def empty(self, shape: int | Sequence[int], dtype: Any = None) -> T:
        """A new tensor in memory that all ranks of this host can reach; its values do not matter.

        An allreduce in place of such tensors, or of parts of them that lie side by side, moves each byte once: every
        rank reads its share of all ranks' tensors where they are, and stores the result in all of them. On all ranks
        they must be such tensors; where one is not, the same operation copies, with the same bits in the result.

        Args:
            shape: the extents, or one number for a vector.
            dtype: the element type; None is the framework's default, float32.

        Returns:
            A contiguous tensor. Its memory is whole pages, stays readable after ``shutdown()``, and is given back when
            the last tensor on it is gone. A child of fork has a copy of its own. It is private memory, with one
            warning, where no more can be shared (``HOROCACHE_REGION_BYTES``, or the memory of the host), and in a job
            of one rank.

        Raises:
            InvalidArgumentError: a negative extent, or an element type that cannot be sent. NotInitializedError: before
                ``init()``. HorocacheError: there is no memory.
        """
        runtime = context.current().runtime
        if isinstance(dtype, int):
            raise InvalidArgumentError(f"{dtype} is no element type; a shape of several extents is one tuple.")
        return self.adapter.from_result(runtime.empty(_extents(shape), self.adapter.dtype_name(dtype)))

    def is_shared(self, tensor: T) -> bool:
        """Whether the tensor's memory is that of :meth:`empty`, shared with the other ranks of this host."""
        part: Any = tensor
        if getattr(tensor, "ndim", 0):
            part = part[(slice(0, 1),) * part.ndim]  # contiguous whatever the tensor is
        shared: bool = context.current().runtime.is_shared(part)
        return shared


def _extents(shape: Any) -> list[int]:
    try:
        return [operator.index(extent) for extent in ([shape] if isinstance(shape, int) else shape)]
    except TypeError as error:
        raise InvalidArgumentError(f"{shape!r} is not a shape.") from error
