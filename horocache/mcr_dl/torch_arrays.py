"""Access to torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horocache.errors import no_memory_for
from horocache.mcr_dl.arrays import Arrays
from horocache.torch.adapter import collectives


def _of_memory(error: RuntimeError, size: int, on_host: bool) -> Exception:
    # torch has an out-of-memory error for devices only; for CPU memory it raises a plain RuntimeError.
    return no_memory_for(size) if on_host and "allocate" in str(error) else error


class TorchArrays(Arrays):
    """:class:`Arrays` for torch tensors on the CPU and on CUDA devices."""

    def count(self, tensor: Any) -> int:
        """Return the number of elements."""
        return int(tensor.numel())

    def copy(self, vector: Any) -> Any:
        """Return a vector with the same values and memory of its own."""
        try:
            return vector.clone()
        except RuntimeError as error:
            raise _of_memory(error, vector.nbytes, vector.is_cpu) from None

    def joined(self, vectors: Sequence[Any]) -> Any:
        """Return one vector with the elements of several."""
        try:
            return torch.cat(list(vectors))
        except RuntimeError as error:
            size = sum(vector.nbytes for vector in vectors)
            raise _of_memory(error, size, vectors[0].is_cpu) from None

    def new(self, count: int, like: Any) -> Any:
        """Return a vector of ``count`` undefined elements, on the device of ``like``."""
        try:
            return like.new_empty(count)
        except RuntimeError as error:
            raise _of_memory(error, count * like.element_size(), like.is_cpu) from None

    def overlap(self, one: Any, other: Any) -> bool:
        """True if two vectors share memory."""
        begin, start = one.data_ptr(), other.data_ptr()
        return bool(begin < start + other.nbytes and start < begin + one.nbytes)

    def on_host(self, tensor: Any) -> bool:
        """True for a tensor on the CPU: operations on rows store no result in a given tensor of a device."""
        return bool(tensor.is_cpu)


TORCH = TorchArrays(collectives, torch.Tensor)
