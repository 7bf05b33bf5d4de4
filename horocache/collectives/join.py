"""``join``: a rank without more data takes part in the operations of the others."""

from __future__ import annotations

from numbers import Integral

from horocache.base.operation_codes import OP_JOIN
from horocache.base.request import Request
from horocache.collectives.arguments import set_id
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError, UnsupportedError


def join(device: int = -1, process_set: ProcessSet = global_process_set, divide_by: str = "all") -> int:
    """Announce that this rank has no more data for a process set, and wait until every rank of the set has joined.

    Meanwhile this rank takes part in the other ranks' operations on the set without data of its own: reductions leave
    it out, gathers and alltoall take no rows from it, rows for it are dropped, and a barrier counts it as arrived. The
    root of an operation must have data: if it has joined, the operation raises UnsupportedError on all ranks that
    called it, and the job goes on. Operations that this rank submitted before complete with its data. Other threads of
    this rank may use other process sets meanwhile, but not this one.

    Args:
        device: ignored. Horovod makes zeros on this device; horocache needs no zeros.
        process_set: the ranks that join.
        divide_by: the divisor of Average from the moment the first rank joins: ``"all"``, the number of all ranks of
            the set, as in Horovod; or ``"active"``, the number of ranks that have not joined. The same on all ranks.

    Returns:
        The global rank that joined last, the same on all ranks.

    Raises:
        UnsupportedError: autotune changes the number of groups of an optimizer, which needs equal steps on all ranks.
        InvalidArgumentError: this rank is not in the set, or ``divide_by`` is neither of the two. MismatchError: the
            ranks give different ``divide_by``; names two ranks, on all ranks, when all have joined. Until then the
            value of the first rank to join holds. The job goes on. PeerLostError: a rank died. StallError: a rank did
            not join in time. ShutDownError: a rank left the job. AbortedError: a rank aborted the job.
    """
    _check_groups_stay()
    if not isinstance(device, Integral):
        raise InvalidArgumentError(f"join takes the number of a device, not {device!r}; did you mean process_set=?")
    if divide_by not in ("all", "active"):
        raise InvalidArgumentError(f"divide_by={divide_by!r}; it is 'all' (ranks) or 'active' (those with data).")
    number = set_id(process_set)
    runtime = context.current().runtime
    request = Request(OP_JOIN, (), process_set=number, wait_follows=True, divide_by=divide_by)
    answer = runtime.wait(runtime.submit(request))
    assert isinstance(answer, int)
    return answer


def _check_groups_stay() -> None:
    if context.current().tunes_groups is not None:
        raise UnsupportedError(
            f"rank {context.rank()}: join() cannot be used while autotune changes num_groups, because the ranks must "
            "make the same steps then. Give DistributedOptimizer(num_groups=) a number, or switch autotune off."
        )
