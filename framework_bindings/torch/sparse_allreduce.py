"""Allreduce of sparse tensors, which gathers their indices and values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from horocache.collectives.api import Average, Sum, check_op, synchronize
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import UnsupportedError

from .adapter import collectives


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> Callable[[], torch.Tensor]:
    """Start a sum or an average of the ranks' sparse tensors, computed by gathering indices and values.

    Args:
        tensor: a COO tensor of the same shape on all ranks; the number of values may differ.
        name: identifies the tensor across ranks.
        op: Average or Sum.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"``; the same on all ranks. None: the selector
            chooses.

    Returns:
        A function to call once. It waits and returns the result, a COO tensor that is not coalesced.

    Raises:
        UnsupportedError: ``op`` is neither Average nor Sum, or the tensor is not COO.
    """
    if check_op(op) not in (Average, Sum):
        raise UnsupportedError(f"sparse tensors can be reduced with Average or Sum, not with op={op}.")
    if tensor.layout is not torch.sparse_coo:
        raise UnsupportedError(f"sparse_allreduce_async takes tensors of layout torch.sparse_coo, not {tensor.layout}.")
    # An allgather concatenates rows, so each index becomes a row. As one group, both are submitted or neither.
    parts = [tensor._indices().t(), tensor._values()]
    handle = collectives.allgather_to_average_async(parts, name, process_set, backend=backend)

    def finish() -> torch.Tensor:
        (indices, values), divisor = synchronize(handle)
        if op == Average:
            values = values / divisor
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)

    return finish
