"""``join``: a rank without more data takes part in the operations of the others."""

from __future__ import annotations

from numbers import Integral

from horocache.base.operation_codes import OP_JOIN
from horocache.collectives.arguments import set_id
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError


def join(device: int = -1, process_set: ProcessSet = global_process_set, divide_by: str = "all") -> int:
    """Say that this rank has no more data for a process set, and wait until every rank of the set has said so.

    Meanwhile it takes part in the others' operations on the set without data of its own: reductions leave it out,
    gathers and alltoall take no rows from it, rows for it are dropped, and a barrier counts it as arrived. Operations
    with a root need one that has data: else they raise UnsupportedError on all ranks that called them, and the job goes
    on. What this rank submitted before is completed with its data. Other threads of this rank may use other process
    sets meanwhile, but not this one.

    Args:
        device: accepted because Horovod has it, which makes zeros on that device; no zeros are made here.
        process_set: the ranks that are to join.
        divide_by: what Average divides by from the moment the first rank joins: the number of ``"all"`` ranks of the
            set, as in Horovod, or that of the ``"active"`` ones, which have not joined. The same on all ranks.

    Returns:
        The global rank that joined last, the same on all ranks.

    Raises:
        InvalidArgumentError: this rank is not in the set, or ``divide_by`` is neither. MismatchError: ranks differ in
            ``divide_by``; names two of them, on all ranks, once all have joined; until then the first one's value held.
            The job goes on. Others as :func:`synchronize`.
    """
    if not isinstance(device, Integral):
        raise InvalidArgumentError(f"join takes the number of a device, not {device!r}; did you mean process_set=?")
    if divide_by not in ("all", "active"):
        raise InvalidArgumentError(f"divide_by={divide_by!r}; it is 'all' (ranks) or 'active' (those with data).")
    number = set_id(process_set)
    runtime = context.current().runtime
    answer = runtime.wait(runtime.submit(OP_JOIN, (), None, process_set=number, wait_follows=True, divide_by=divide_by))
    assert isinstance(answer, int)
    return answer
