"""One batch of tokens on the rank that hosts its experts: the outputs, and the gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import torch
from horocache.errors import InvalidArgumentError

__all__ = ["ExpertBatch"]


class ExpertBatch:
    """A batch: for each row the sum of ``weight * expert(row)`` over its slots, added in the order of slots.

    The slots are sorted by expert, so that each expert gets one tensor with its tokens, in the order of rows. Autograd
    records the experts alone: the gradients of the copies and of the weighted sum are calculated here, with few
    operations on whole batches. Example: 3 rows with the experts (0, 1), (1, -1), (0, -1) make the order of slots 0, 4,
    1, 2, in rows 0, 2, 0, 1; expert 0 gets rows 0 and 2, and expert 1 gets rows 0 and 1.

    Gradient mode and autocast are those of the caller.

    Args:
        experts: of this rank, by the text of their number.
        x: shape ``(rows, hidden)``; not used after the constructor.
        weights: shape ``(rows, k)``, the element type of sums.
        numbers: shape ``(rows, k)``: the expert of each slot; -1 in slots without an expert.

    Raises:
        InvalidArgumentError: an expert returned another shape, or is not on this rank.
    """

    def __init__(
        self,
        experts: torch.nn.ModuleDict,
        x: torch.Tensor,
        weights: torch.Tensor,
        numbers: npt.NDArray[np.int32],
    ) -> None:
        self._shape, self._k = x.shape, numbers.shape[1]
        flat = numbers.ravel()
        counts = np.bincount(flat + 1)
        order = np.argsort(flat, kind="stable")[counts[0] :]  # expert -1 comes first
        chosen = [int(number) for number in np.flatnonzero(counts[1:])]
        _check_numbers(chosen, experts)
        lengths = counts[1:][chosen].tolist()
        self._order = torch.from_numpy(order).to(x.device)
        self._rows = self._order if self._k == 1 else torch.from_numpy(order // self._k).to(x.device)
        with torch.no_grad():
            self._weights = weights.reshape(-1).index_select(0, self._order).unsqueeze(1)
            self._tokens = x.index_select(0, self._rows)
        self._tokens.requires_grad_(torch.is_grad_enabled())
        # In contrast to parts by split(), experts may write into their part.
        parts = torch.unsafe_split_with_sizes(self._tokens, lengths)
        self._outputs = [_output(experts, number, part) for number, part in zip(chosen, parts, strict=True)]

    def result(self) -> torch.Tensor:
        """Return the sums, shape ``(rows, hidden)``, of the element type of the weights."""
        with torch.no_grad():
            return self._sum(self._wide_outputs() * self._weights)

    def gradients(
        self, grad: torch.Tensor, parameters: Sequence[torch.Tensor], keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor | None]]:
        """Run the backward pass.

        Args:
            grad: of the sums, shape ``(rows, hidden)``, of the element type of the weights.
            parameters: of the experts of this rank.
            keep: True if there may be another backward pass.

        Returns:
            The gradients of ``x`` and of the weights, of the element type of the weights; and those of the parameters,
            None for a parameter that did not take part.
        """
        by_slot = grad.index_select(0, self._rows)
        weights = torch.zeros(self._shape[0] * self._k, dtype=grad.dtype, device=grad.device)
        weights[self._order] = (by_slot * self._wide_outputs()).sum(1)
        by_slot *= self._weights
        pairs = []
        begin = 0
        for output in self._outputs:
            end = begin + len(output)
            if output.requires_grad:
                pairs.append((output, by_slot[begin:end].to(output.dtype)))
            begin = end
        wanted = [self._tokens, *parameters]
        found: Sequence[torch.Tensor | None] = [None] * len(wanted)
        if pairs:
            outputs, grads = zip(*pairs, strict=True)
            found = torch.autograd.grad(outputs, wanted, grads, retain_graph=keep, allow_unused=True)
        tokens = torch.zeros_like(self._tokens) if found[0] is None else found[0]
        return self._sum(tokens.to(grad.dtype)), weights.view(-1, self._k), list(found[1:])

    def _wide_outputs(self) -> torch.Tensor:
        """Return the outputs of all slots, in their order by expert, in the element type of the weights."""
        return torch.cat([output.detach().to(self._weights.dtype) for output in self._outputs])

    def _sum(self, by_slot: torch.Tensor) -> torch.Tensor:
        """Return for each row the sum over its slots, added in the order of slots."""
        total = torch.zeros(self._shape, dtype=by_slot.dtype, device=by_slot.device)
        if self._k <= 2:  # two numbers have one sum in any order
            return total.index_add_(0, self._rows, by_slot)
        slots = self._order % self._k
        for slot in range(self._k):
            chosen = (slots == slot).nonzero().flatten()
            total.index_add_(0, self._rows.index_select(0, chosen), by_slot.index_select(0, chosen))
        return total


def _check_numbers(chosen: Sequence[int], experts: torch.nn.ModuleDict) -> None:
    if not all(str(number) in experts for number in chosen):
        raise InvalidArgumentError(
            f"a batch has tokens for experts {list(chosen)}, but this rank has the experts "
            f"{[int(name) for name in experts]}; give all ranks the same expert_ranks"
        )


def _output(experts: torch.nn.ModuleDict, number: int, tokens: torch.Tensor) -> torch.Tensor:
    output = experts[str(number)](tokens)
    if not isinstance(output, torch.Tensor) or output.shape != tokens.shape:
        found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InvalidArgumentError(
            f"expert {number} returned {found} for tokens of shape {tuple(tokens.shape)}; an expert returns one tensor "
            "of the shape that it gets"
        )
    return output
