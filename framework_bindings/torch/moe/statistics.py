"""Counters of the slots of a layer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from horocache.moe.exchanges import Outcome, Report

__all__ = ["Statistics"]

_CAUSES = (Outcome.OWN_TIMEOUT, Outcome.HOST_LEFT, Outcome.RING_FULL, Outcome.LOST_RANK)


@dataclass
class Statistics:
    """The slots of this rank's tokens since the layer was made, or since :meth:`MoELayer.reset_statistics`.

    ``sent`` is always ``delivered`` plus the sum of ``dropped``.

    Attributes:
        calls: forward calls, without the second runs of :func:`horocache.torch.moe.checkpoint`.
        over_capacity: slots that the gate dropped for lack of capacity; they were not sent.
        sent: slots that left for the ranks of their experts, or stayed on this rank if it hosts the expert.
        delivered: slots whose result came back.
        dropped: slots whose result did not come, by cause: ``own_timeout`` (this rank left before the result came),
            ``host_left`` (the host left before it served the batch), ``ring_full`` (the host was too many calls
            behind), ``lost_rank`` (the host died).
        dropped_by_rank: the same, by cause and then by the rank of the process set that hosts the expert.
        expert_slots: slots that left for each expert of the layer.
        waited: seconds that this rank waited for each rank of the process set. Exchanges that wait for all ranks at
            once have the same value for each other rank.
    """

    calls: int = 0
    over_capacity: int = 0
    sent: int = 0
    delivered: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: {cause.name.lower(): 0 for cause in _CAUSES})
    dropped_by_rank: dict[str, list[int]] = field(default_factory=dict)
    expert_slots: list[int] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    @classmethod
    def empty(cls, ranks: int, experts: int) -> Statistics:
        """Return counters of zero for a layer with these numbers of ranks and experts."""
        by_rank = {cause.name.lower(): [0] * ranks for cause in _CAUSES}
        return cls(dropped_by_rank=by_rank, expert_slots=[0] * experts, waited=[0.0] * ranks)

    def copy(self) -> Statistics:
        """Return counters that do not change with these."""
        return copy.deepcopy(self)

    def count(self, slots: Sequence[int], expert_slots: Sequence[int], over_capacity: int, report: Report) -> int:
        """Add one call; return the slots that it dropped.

        Args:
            slots: of this rank's batch for each rank.
            expert_slots: of this rank's tokens, by expert.
            over_capacity: slots that the gate dropped.
            report: of the exchange.
        """
        self.calls += 1
        self.over_capacity += over_capacity
        self.sent += sum(slots)
        lost = 0
        for rank, (number, outcome) in enumerate(zip(slots, report.outcomes, strict=True)):
            if outcome in _CAUSES:
                self.dropped[outcome.name.lower()] += number
                self.dropped_by_rank[outcome.name.lower()][rank] += number
                lost += number
            else:
                self.delivered += number
        self.expert_slots = [had + more for had, more in zip(self.expert_slots, expert_slots, strict=True)]
        self.waited = [had + more for had, more in zip(self.waited, report.waited, strict=True)]
        return lost
