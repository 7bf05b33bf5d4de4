"""The way of a rank's tokens to the ranks that host their experts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from horocache.errors import InvalidArgumentError

__all__ = ["Route", "check_expert_ranks", "even_expert_ranks"]

Integers = npt.NDArray[np.int64]


class Route:
    """The batches of one rank: for each rank the tokens with a slot on an expert of that rank, ascending.

    A token travels once to each rank that hosts any of its experts. Example: experts 0 and 1 are on rank 0, expert 2 is
    on rank 1. Tokens with the experts (0, 1), (2, 0) and (2, -1) make a batch of tokens 0 and 1 for rank 0, and of
    tokens 1 and 2 for rank 1.

    Args:
        experts: integers, shape ``(T, k)``: the expert of each slot; -1 for a slot without an expert.
        expert_ranks: the rank that hosts each expert.
        ranks: number of ranks.

    Raises:
        InvalidArgumentError: an expert is out of range; names the token, the slot and the expert.
    """

    def __init__(self, experts: Integers, expert_ranks: Sequence[int], ranks: int) -> None:
        self.experts = experts
        bad = (experts < -1) | (experts >= len(expert_ranks))
        if bad.any():
            token, slot = (int(index) for index in np.argwhere(bad)[0])
            raise InvalidArgumentError(
                f"slot {slot} of token {token} chose expert {experts[token, slot]}; experts have the numbers 0 to "
                f"{len(expert_ranks) - 1}, and -1 stands for a slot without an expert; correct the gate"
            )
        hosts = np.append(np.asarray(expert_ranks, np.int64), -1)[experts]  # expert -1 takes the last entry
        self.masks = [hosts == rank for rank in range(ranks)]
        self.tokens = [np.flatnonzero(mask.any(axis=1)) for mask in self.masks]
        self.rows = [len(tokens) for tokens in self.tokens]
        self.slots = [int(mask.sum()) for mask in self.masks]
        self._num_experts = len(expert_ranks)

    def experts_for(self, rank: int) -> Integers:
        """Return the experts of the batch for a rank, shape ``(rows, k)``; -1 in slots of other ranks."""
        tokens = self.tokens[rank]
        return np.where(self.masks[rank][tokens], self.experts[tokens], -1)

    def expert_slots(self) -> list[int]:
        """Return the number of slots of each expert."""
        counts: list[int] = np.bincount(self.experts[self.experts >= 0], minlength=self._num_experts).tolist()
        return counts

    def delivered_slots(self, delivered: Sequence[bool]) -> npt.NDArray[np.bool_]:
        """Return which slots belong to delivered batches, shape ``(T, k)``."""
        slots = np.zeros(self.experts.shape, np.bool_)
        for mask, came in zip(self.masks, delivered, strict=True):
            if came:
                slots |= mask
        return slots


def even_expert_ranks(experts: int, ranks: int) -> list[int]:
    """Return the default host of each expert: consecutive experts, and as many as the other ranks have, give or take 1.

    Example: 5 experts on 2 ranks are on ranks 0, 0, 0, 1, 1.
    """
    return [expert * ranks // experts for expert in range(experts)]


def check_expert_ranks(expert_ranks: Sequence[int], experts: int, ranks: int) -> list[int]:
    """Return the map from experts to ranks as a list of integers.

    Raises:
        InvalidArgumentError: it has another number of experts, or a rank that does not exist.
    """
    hosts = [int(rank) for rank in expert_ranks]
    if len(hosts) != experts:
        raise InvalidArgumentError(
            f"expert_ranks has {len(hosts)} entries for {experts} experts; give the rank of each expert"
        )
    for expert, rank in enumerate(hosts):
        if not 0 <= rank < ranks:
            raise InvalidArgumentError(
                f"expert_ranks puts expert {expert} on rank {rank}, but the process set of the layer has the ranks 0 "
                f"to {ranks - 1}; ranks count within the set"
            )
    return hosts
