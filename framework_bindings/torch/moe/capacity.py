"""The capacity of an expert, and the slots within it."""

from __future__ import annotations

import math
from fractions import Fraction

import torch


def expert_capacity(tokens: int, num_experts: int, k: int, factor: float, min_capacity: int) -> int:
    """Return the number of slots that one expert takes: ``max(ceil(k * tokens / num_experts * factor), min_capacity)``.

    The factor counts as the decimal number that it prints as, and the product is exact: 10 tokens, one expert and a
    factor of 1.1 make 11, where floating-point arithmetic makes 12.
    """
    share = Fraction(repr(factor)) * k * tokens / num_experts
    return max(math.ceil(share), min_capacity)


def within_capacity(
    experts: torch.Tensor, used: torch.Tensor | None, priority: torch.Tensor | None, capacity: int
) -> torch.Tensor:
    """Return which slots their experts take: each expert takes up to ``capacity`` slots, by descending priority.

    Example: tokens 0, 1 and 2 chose the same expert with priorities 0.2, 0.9 and 0.2, and the capacity is 2. The expert
    takes tokens 1 and 0; token 2 has the priority of token 0 and comes after it.

    Args:
        experts: int64, shape ``(T, k)``: the expert of each slot. The experts of a token differ.
        used: bool, shape ``(T,)``: tokens that are not masked. Slots of masked tokens are not taken and need no
            capacity. None: all tokens are used.
        priority: shape ``(T, k)``; equal priorities are ordered by token. None: the order of the tokens.
        capacity: slots per expert.

    Returns:
        bool, shape ``(T, k)``.
    """
    tokens, k = experts.shape
    taken = used.unsqueeze(1).expand(tokens, k) if used is not None else torch.ones_like(experts, dtype=torch.bool)
    if capacity >= tokens:  # a token has at most one slot with an expert
        return taken
    slots = experts if used is None else experts.masked_fill(~taken, -1)
    flat = slots.reshape(-1)
    order = torch.arange(flat.numel(), device=flat.device)
    if priority is not None:
        order = priority.reshape(-1).sort(descending=True, stable=True).indices
    # Slots of one expert become neighbours, in the order of their priority.
    sorted_experts, by_expert = flat[order].sort(stable=True)
    position = torch.arange(flat.numel(), device=flat.device)
    position_in_expert = position - torch.searchsorted(sorted_experts, sorted_experts)
    fits = torch.empty_like(flat, dtype=torch.bool)
    fits[order[by_expert]] = position_in_expert < capacity
    return fits.view(tokens, k) & taken
