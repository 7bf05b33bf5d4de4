"""In-place sums and averages of sparse tensors, for torch.distributed."""

from __future__ import annotations

from typing import Any

import torch
from horocache.collectives.api import Average, Sum
from horocache.errors import MismatchError, UnsupportedError

from .tensors import results_of
from .work import Store


def sparse_parts(tensor: torch.Tensor, reduce_op: int, scale: float, ranks: int) -> tuple[list[torch.Tensor], Store]:
    """Return the tensors to allgather for a COO tensor, and a function that stores the ranks' sum or average in it.

    Raises:
        UnsupportedError: the reduction is neither a sum nor an average, or the tensor is not COO.
    """
    if reduce_op not in (Sum, Average) or scale != 1.0:
        raise UnsupportedError("all_reduce of sparse tensors can be a SUM or an AVG.")
    if tensor.layout is not torch.sparse_coo:
        raise UnsupportedError(f"all_reduce takes sparse tensors of layout torch.sparse_coo, not {tensor.layout}.")
    # An allgather concatenates rows, so each index becomes a row.
    indices = tensor.detach()._indices().t().contiguous()
    values = tensor.detach()._values().contiguous()
    shape = torch.tensor([list(tensor.shape)], device=tensor.device)

    def store(answer: Any) -> None:
        all_indices, all_values, shapes = results_of(answer)
        if not bool((shapes == shape).all()):
            raise MismatchError(
                f"all_reduce of sparse tensors: the ranks' have the shapes {shapes.tolist()}, in their order. Give "
                "tensors of one shape."
            )
        total = torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape, check_invariants=False).coalesce()
        with torch.no_grad():
            tensor.copy_(total / ranks if reduce_op == Average else total)

    return [indices, values, shape], store
