"""``barrier``: every rank of a process set waits for the others."""

from __future__ import annotations

from horocache.base.operation_codes import OP_BARRIER
from horocache.base.request import Request
from horocache.collectives.arguments import check_backend, set_id
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set


def barrier(process_set: ProcessSet = global_process_set, *, backend: str | None = None) -> None:
    """Wait until every rank of the set has called it or has joined.

    Args:
        process_set: the ranks that take part.
        backend: name of the backend, such as ``"shm"``; the same on all ranks. None: the selector chooses.

    Raises:
        MismatchError: the ranks name different backends. PeerLostError: a rank died. StallError: a rank did not call it
            in time. ShutDownError: a rank left the job. AbortedError: a rank aborted the job.
    """
    number = set_id(process_set)
    name = check_backend(backend)
    runtime = context.current().runtime
    runtime.wait(runtime.submit(Request(OP_BARRIER, (), process_set=number, backend=name, wait_follows=True)))
