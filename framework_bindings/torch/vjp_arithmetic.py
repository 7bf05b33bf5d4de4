"""The local arithmetic of the gradient formulas of :mod:`horocache.data_parallel.vjp`, on torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Arithmetic:
    """The operations of :class:`horocache.data_parallel.vjp.Differentiable` that run on this rank only."""

    def own_rows(self, tensor: torch.Tensor, start: Any, shape: Sequence[Any]) -> torch.Tensor:
        """Return the part of the given shape that begins at row ``start``; a scalar counts as one row."""
        rows = shape[0] if shape else 1
        if isinstance(start, torch.Tensor):
            index = start + torch.arange(rows, device=start.device)
            own = tensor.index_select(0, index.to(tensor.device))
        else:
            own = tensor[start : start + rows]
        return own.reshape(shape)

    def zeros(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return zeros that depend on the tensor, so that a graph keeps the operation that computes the tensor."""
        return tensor.masked_fill(torch.ones((), dtype=torch.bool, device=tensor.device), 0)

    def scale(self, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        """Multiply every element by a number."""
        return tensor * factor


def with_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Pad the tensor with rows of zeros at its end, up to ``rows`` rows."""
    missing = rows - tensor.shape[0]
    return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))]) if missing else tensor
