"""What the formulas of :mod:`horocache.data_parallel.vjp` compute on torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Arithmetic:
    """The part of :class:`horocache.data_parallel.vjp.Differentiable` in which no other rank takes part."""

    def own_rows(self, tensor: torch.Tensor, start: Any, shape: Sequence[Any]) -> torch.Tensor:
        """The part of the given shape that begins at row ``start``; a scalar is one row."""
        rows = shape[0] if shape else 1
        if isinstance(start, torch.Tensor):
            own = tensor.index_select(0, start + torch.arange(rows))
        else:
            own = tensor[start : start + rows]
        return own.reshape(shape)

    def zeros(self, tensor: torch.Tensor) -> torch.Tensor:
        """Zeros that depend on the tensor."""
        return tensor.masked_fill(torch.ones((), dtype=torch.bool), 0)

    def scale(self, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        """Every element times a number."""
        return tensor * factor


def with_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """The tensor, with rows of zeros at its end where it has fewer than ``rows``."""
    missing = rows - tensor.shape[0]
    return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))]) if missing else tensor
