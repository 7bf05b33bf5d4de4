"""The routing of a dispatch, which later dispatches and combines use again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from horocache.core.process_set import ProcessSet
from horocache.core.session import Session
from horocache.moe.route import Route

__all__ = ["Handle"]

Integers = npt.NDArray[np.int64]


class Handle:
    """The routing of one :func:`horocache.moe.dispatch` on this rank. Not modified after it was made.

    Any number of dispatches and combines may use it, in any order that is equal on all ranks, until the session ends.

    Attributes:
        name: of the dispatch that made it.
        process_set: the ranks that take part.
        expert_ranks: for each expert the rank within the set that hosts it.
        tokens: this rank's tokens, ``T``.
        k: slots of a token.
        rows_sent: by rank of the set: the tokens that this rank sends there.
        rows_received: by rank of the set: the rows that come from there; their sum is ``R``.
        received_experts: int64, shape ``(R, k)``: their experts, -1 in slots of other ranks. Read-only.
        expert_counts: int64, shape ``(E,)``: the slots of the received rows for each expert; 0 for experts of others.
    """

    def __init__(
        self,
        name: str,
        process_set: ProcessSet,
        expert_ranks: Sequence[int],
        route: Route,
        rows_received: Sequence[int],
        received_experts: Integers,
        number: int,
        session: Session,
    ) -> None:
        self.name, self.process_set = name, process_set
        self.expert_ranks = tuple(expert_ranks)
        self.tokens, self.k = route.experts.shape
        self.rows_sent = tuple(route.rows)
        self.rows_received = tuple(rows_received)
        self.received_experts = received_experts
        received_experts.setflags(write=False)
        chosen = received_experts[received_experts >= 0]
        self.expert_counts: Integers = np.bincount(chosen, minlength=len(self.expert_ranks)).astype(np.int64)
        self.number = number  # equal on all ranks, because they make their handles in one order
        self.route, self.session = route, session
        ends = np.cumsum(self.rows_received).tolist()
        self._rows = [slice(end - rows, end) for end, rows in zip(ends, self.rows_received, strict=True)]

    @property
    def rows(self) -> int:
        """The rows that this rank receives, ``R``."""
        return len(self.received_experts)

    def rows_from(self, rank: int) -> slice:
        """Return the received rows of a rank of the set."""
        return self._rows[rank]

    def slots_of(self, expert: int) -> tuple[Integers, Integers]:
        """Return the rows, and the slots in them, that chose an expert of this rank; ascending by row, then by slot."""
        rows, slots = np.nonzero(self.received_experts == expert)
        return rows, slots

    def __repr__(self) -> str:
        return (
            f"Handle(name={self.name!r}, number={self.number}, tokens={self.tokens}, k={self.k}, "
            f"rows_sent={self.rows_sent}, rows_received={self.rows_received})"
        )
