"""The exchange of Tutel: alltoalls in two steps, within groups of ranks and between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import UnsupportedError
from horocache.lang import two_level
from horocache.moe.exchanges.padded import Padded
from horocache.moe.window import agree

__all__ = ["Hierarchical", "shape_of"]

NAME = "hierarchical"


class Hierarchical(Padded):
    """Two-dimensional hierarchical alltoalls move the batches and the results (Hwang et al., MLSys 2023, section 3.4).

    The ranks form groups of equally many. A rank gives its parts for the ranks with position ``p`` in other groups to
    the rank with that position in its own group. That rank sends the parts of its group to each other group as one
    message. Both steps are one compiled program of :mod:`horocache.lang`, which the daemon runs. Programs move chunks
    of one size, so the parts are padded as by :class:`Padded`.

    Example: 8 ranks on one host are 4 groups of 2. Rank 0 gives its parts for ranks 3, 5 and 7 to rank 1, and gets
    those of rank 1 for ranks 2, 4 and 6. It sends 3 messages of 2 parts to other groups, where alltoall sends 6 of 1.

    Groups are the ranks of a host, if several hosts have equally many consecutive ranks of the process set. On one host
    they have the largest divisor of the number of ranks that is at most its square root. Parts travel in one step, as
    by :class:`Padded`, if a group would have one rank: with a prime number of ranks, with one rank on each host, and if
    hosts have different numbers.

    Args:
        name: of the layer; equal on all ranks.
        process_set: the ranks of the layer.

    Raises:
        UnsupportedError: the job has no program for this number of ranks.
    """

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        super().__init__(name, process_set)
        runtime = context.current().runtime
        # None: the hosts of the ranks are not known yet.
        self.shape = shape_of([0] * self.size) if runtime.cross_size == 1 else None
        if _is_prime(self.size):
            return
        if str(runtime.knobs()["moe_exchange"][0]) != NAME:
            raise UnsupportedError(
                f"layer {name!r}: the exchange {NAME!r} runs programs that a job has from its start; set "
                f"HOROCACHE_MOE_EXCHANGE={NAME}, or call init(moe_exchange={NAME!r})"
            )
        known = two_level.sizes(runtime.size)
        if self.size not in known:
            raise UnsupportedError(
                f"layer {name!r}: the exchange {NAME!r} has programs for {known} ranks in this job, and the layer has "
                f"{self.size}; use another exchange"
            )

    def backend(self) -> str | None:
        """Return the backend of the alltoalls; None: the selector chooses it, because there is one step."""
        if self.shape is None:
            hosts = agree(f"{self.name}.hosts", {}, {"host": context.cross_rank()}, self.process_set)
            self.shape = shape_of([each["host"] for each in hosts])
        return None if 1 in self.shape else f"program/{two_level.program_name(*self.shape)}"


def shape_of(hosts: Sequence[int]) -> tuple[int, int]:
    """Return the number of groups, and of ranks in each, for ranks on these hosts.

    Examples: 8 ranks on one host make (4, 2); on two hosts with 4 ranks each (2, 4); on hosts 0, 1, 0, 1 one step,
    (4, 1).
    """
    size = len(hosts)
    names = list(dict.fromkeys(hosts))
    if len(names) == 1:
        per_group = max(number for number in range(1, math.isqrt(size) + 1) if size % number == 0)
        return size // per_group, per_group
    per_host = size // len(names)
    if list(hosts) == [name for name in names for _ in range(per_host)]:
        return len(names), per_host
    return size, 1


def _is_prime(size: int) -> bool:
    """Return True if the ranks cannot be divided into groups; also for one rank."""
    return all(size % number for number in range(2, math.isqrt(size) + 1))
