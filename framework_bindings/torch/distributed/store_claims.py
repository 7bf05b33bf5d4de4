"""Finds out that two jobs meet in one store of torch: two processes claim one rank.

torch's stores take whoever comes. Two jobs that were started by hand with the same MASTER_ADDR and MASTER_PORT have one
store, that of the rank 0 which came first, and a rank of one job may take the place of the same rank of the other. So
each process writes down whom it claims to be. A process that finds another living process of this host with its rank
says so in the store, where rank 0 looks for as long as ranks may still come.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from horocache.torch.distributed.future_threads import start_thread

from horocache.core import context
from horocache.core.launcher_environment import own_environment, start_of
from horocache.core.session import Session
from horocache.core.store_bootstrap import own_host
from horocache.errors import StartupError

_CLAIMED_TWICE = "horocache/claimed twice"
_BETWEEN_LOOKS_S = 1.0


class _End:
    """Wakes the thread that looks when the session ends, for :func:`horocache.core.context.follow`."""

    def __init__(self) -> None:
        self.come = threading.Event()

    def started(self, session: Session) -> None:
        self.come = threading.Event()

    def ended(self, running: bool) -> None:
        self.come.set()

    def forked_child(self) -> None:
        """No thread looks there."""


_end = _End()
context.follow(_end)


@dataclass(frozen=True)
class _Claimant:
    pid: int
    started: str  # as /proc has it, so that a later process with the same number is another one
    host: str
    namespace: str  # in which the number is that process's

    @staticmethod
    def of_this_process() -> _Claimant:
        pid = os.getpid()
        return _Claimant(pid, start_of(pid), own_host(), str(Path("/proc/self/ns/pid").readlink()))

    def is_other_than(self, own: _Claimant) -> bool:
        """Whether it is another process for certain, and runs: a store may be used again after its job."""
        near = (self.host, self.namespace) == (own.host, own.namespace)
        return near and self.pid != own.pid and start_of(self.pid) == self.started


def claim(store: Any, rank: int) -> None:
    """Write down that this process is ``rank`` of the job that has this store.

    Raises:
        StartupError: another process of this host is that rank.
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
        store.delete_key(_CLAIMED_TWICE)  # of an earlier job with this store


def _address() -> str:
    variables = own_environment()
    return ":".join(variables.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))


def check(store: Any) -> None:
    """Look whether somebody has found a rank of this job claimed twice.

    Raises:
        StartupError: a process has.
    """
    if store.check([_CLAIMED_TWICE]):
        raise StartupError(store.get(_CLAIMED_TWICE).decode())


def watch(store: Any, session: Session) -> None:
    """Go on looking, in a thread: ranks of another job may come after this one has begun, as late as its own may."""
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
        except RuntimeError:  # the store has gone, and with it whoever comes late
            return
