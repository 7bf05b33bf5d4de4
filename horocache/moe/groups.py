"""Expert-parallel groups of consecutive ranks, and the sets of ranks that hold the same experts."""

from __future__ import annotations

from horocache.collectives.dynamic_process_sets import add_process_set
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set, process_sets
from horocache.errors import InvalidArgumentError

__all__ = ["expert_parallel_sets"]


def expert_parallel_sets(ep_size: int) -> tuple[ProcessSet, ProcessSet]:
    """Return the expert-parallel group of this rank, and the ranks that hold the same experts.

    Groups consist of ``ep_size`` consecutive ranks, and each group has all experts. Example: 4 ranks and ``ep_size=2``
    make the groups {0, 1} and {2, 3}; ranks 0 and 2 hold the same experts, and so do ranks 1 and 3.

    All ranks of the job must call it at the same time. The first call registers the process sets, and later calls find
    them, also those that the program has registered. A set of one rank is not registered, because it does not
    communicate.

    Args:
        ep_size: ranks of a group; a divisor of the number of ranks.

    Raises:
        InvalidArgumentError: ``ep_size`` is not a divisor. The errors of :func:`horocache.add_process_set`.
    """
    size = context.size()
    if isinstance(ep_size, bool) or not isinstance(ep_size, int) or ep_size < 1 or size % ep_size:
        raise InvalidArgumentError(
            f"ep_size must be a divisor of the {size} ranks of the job, so that each group has all experts, not "
            f"{ep_size!r}; for other groups give the layer a process_set"
        )
    groups = [list(range(first, first + ep_size)) for first in range(0, size, ep_size)]
    holders = [list(range(first, size, ep_size)) for first in range(ep_size)]
    own = context.rank()
    return _own_set(groups, own), _own_set(holders, own)


def _own_set(parts: list[list[int]], own: int) -> ProcessSet:
    """Register all parts, in the same order on all ranks; return the one with this rank."""
    return next(made for made in [_registered(ranks) for ranks in parts] if own in made.ranks)


def _registered(ranks: list[int]) -> ProcessSet:
    if ranks == global_process_set.ranks:
        return global_process_set
    if len(ranks) == 1:
        return ProcessSet(ranks)
    known = [made for made in process_sets() if made.ranks == ranks]
    return known[0] if known else add_process_set(ranks)
