"""``barrier``: every rank of a process set waits for the others."""

from __future__ import annotations

from horocache.base.operation_codes import OP_BARRIER
from horocache.collectives.arguments import check_backend, set_id
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set


def barrier(process_set: ProcessSet = global_process_set, *, backend: str | None = None) -> None:
    """Return when every rank of the set has called it, or has joined. Raises as :func:`synchronize`.

    Args:
        process_set: the ranks that take part.
        backend: what runs it, such as ``"shm"``; all ranks must name the same. None leaves it to the selector.
    """
    number = set_id(process_set)
    name = check_backend(backend)
    runtime = context.current().runtime
    runtime.wait(runtime.submit(OP_BARRIER, (), None, process_set=number, backend=name, wait_follows=True))
