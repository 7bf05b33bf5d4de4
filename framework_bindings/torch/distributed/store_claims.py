"""Detects two jobs that share one store of torch: two processes then claim the same rank.

torch's stores accept any process. Two jobs that were started by hand with the same MASTER_ADDR and MASTER_PORT share
the store of the rank 0 that came first, and a rank of one job may take the place of the same rank of the other job.
Therefore each process writes to the store which rank it claims. A process that finds its rank claimed by another living
process of its host reports that in the store. Rank 0 checks for the report for as long as ranks may still come.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from horocache.core import context
from horocache.core.launcher_environment import own_environment, start_of
from horocache.core.session import Session
from horocache.core.store_bootstrap import own_host
from horocache.errors import StartupError

from .future_threads import start_thread

_CLAIMED_TWICE = "horocache/claimed twice"  # the key of the report
_BETWEEN_LOOKS_S = 1.0  # seconds between two checks for the report


class _End:
    """Wakes the checking thread when the session ends; registered with :func:`horocache.core.context.follow`."""

    def __init__(self) -> None:
        self.come = threading.Event()

    def started(self, session: Session) -> None:
        self.come = threading.Event()

    def ended(self, running: bool) -> None:
        self.come.set()

    def forked_child(self) -> None:
        """Do nothing: a forked child has no checking thread."""


_end = _End()
context.follow(_end)


@dataclass(frozen=True)
class _Claimant:
    pid: int
    started: str  # start time from /proc; tells a later process with the same number apart
    host: str
    namespace: str  # the PID namespace in which `pid` is valid

    @staticmethod
    def of_this_process() -> _Claimant:
        pid = os.getpid()
        return _Claimant(pid, start_of(pid), own_host(), str(Path("/proc/self/ns/pid").readlink()))

    def is_other_than(self, own: _Claimant) -> bool:
        """Return True if this is certainly another process, and it runs: a store may be used again after its job."""
        near = (self.host, self.namespace) == (own.host, own.namespace)
        return near and self.pid != own.pid and start_of(self.pid) == self.started


def claim(store: Any, rank: int) -> None:
    """Write to the store that this process is ``rank`` of the store's job.

    Raises:
        StartupError: another running process of this host claims that rank.
    """
    own = _Claimant.of_this_process()
    text = json.dumps(asdict(own))
    expected = ""
    key = f"horocache/claims/{rank}"
    while (there := store.compare_set(key, expected, text).decode()) != text:
        other = _Claimant(**json.loads(there))
        if other.is_other_than(own):
            what = (
                f"two processes claim rank {rank} of a job: {other.pid} and {own.pid}. Two jobs have one store, as "
                f"they have the same MASTER_ADDR and MASTER_PORT ({_address()}), or the same init_method. Give each "
                "job another MASTER_PORT, or start it with torchrun or horocacherun."
            )
            store.set(_CLAIMED_TWICE, what)
            raise StartupError(what)
        expected = there
    if rank == 0 and expected:
        store.delete_key(_CLAIMED_TWICE)  # left by an earlier job with this store


def _address() -> str:
    variables = own_environment()
    return ":".join(variables.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))


def check(store: Any) -> None:
    """Check whether a process has reported that a rank of this job is claimed twice.

    Raises:
        StartupError: there is such a report.
    """
    if store.check([_CLAIMED_TWICE]):
        raise StartupError(store.get(_CLAIMED_TWICE).decode())


def watch(store: Any, session: Session) -> None:
    """Keep checking in a thread for ``start_timeout``: ranks of another job may come after this job has started."""
    seconds = float(session.runtime.knobs()["start_timeout"][0])
    start_thread(_look, store, session, _end.come, seconds)


def _look(store: Any, session: Session, end: threading.Event, seconds: float) -> None:
    for _ in range(max(1, int(seconds / _BETWEEN_LOOKS_S))):
        if end.wait(_BETWEEN_LOOKS_S):
            return
        try:
            check(store)
        except StartupError as error:
            if not end.is_set():
                session.runtime.abort(str(error))
            return
        except RuntimeError:  # the store is gone, so late ranks cannot use it, either
            return
