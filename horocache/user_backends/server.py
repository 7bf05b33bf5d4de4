"""The threads that run the program's backends: one for each process set and backend, while a session runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from horocache.collectives.object_collectives import allgather_object
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.core.session import Session
from horocache.errors import HorocacheError
from horocache.user_backends.backend import Backend, Call, Group

if TYPE_CHECKING:
    from horocache._core import UserCalls

_SLICE_S = 0.2  # how long a thread waits before it looks whether the session has ended
_PATIENCE_S = 2.0  # for the threads at the end of a session
# Between an exception in a backend and its report to the other ranks. The core lets the operations of a job that
# another rank has aborted go on for 1 s.
_GRACE_S = 1.5
_SHORTEST_NAP_S, _LONGEST_NAP_S = 20e-6, 1e-3  # between two tests of an operation
_CORE = ("shm", "mpi", "loopback")  # the core's backends for tensors in the host's memory
_SPINS = 50  # tests before the first nap


class Servers:
    """Starts a thread for each backend of each process set; follows the sessions of the process.

    Role: one for each process. The threads end when the runtime has stopped. They are daemons, because the program's
    code in them may never return.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()  # set when the session has ended

    def started(self, session: Session) -> None:
        """Start the thread that learns of new process sets."""
        makers = {name: one.made_by for name, one in context.state.user_backends.items()}
        if makers:
            self._over = threading.Event()
            self._start(self._serve, session, makers, self._over, name="hc-user-backends")

    def ended(self, running: bool) -> None:
        """Wait a moment for the threads, whose calls are closed."""
        self._over.set()
        end = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        self._threads = []

    def forked_child(self) -> None:
        """The child has none of the threads."""
        self._threads = []

    def _start(self, function: Callable[..., None], *arguments: Any, name: str) -> None:
        thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
        thread.start()
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]

    def _serve(self, session: Session, makers: dict[str, Callable[[Group], Any]], over: threading.Event) -> None:
        while True:
            try:
                came = session.runtime.take_user_calls(_SLICE_S)
            except HorocacheError:  # the runtime has stopped
                return
            if came is not None:
                number, name, calls = came
                make = partial(_make, session, number, name, makers[name])
                self._start(_run_all, make, calls, over, name=f"hc-{name}-{number}")


def _make(session: Session, number: int, name: str, maker: Callable[[Group], Any]) -> Any:
    """Make the backend's object for a process set."""
    return maker(_group(session, number, name))


def _run_all(make: Callable[[], Any], calls: UserCalls, over: threading.Event) -> None:
    """Run a backend's operations in one process set, until the set ends.

    After an exception the backend stays open until the session has ended on this rank. The code of other ranks would
    fail on its closed connections, and might report that before their daemons learn of this failure.
    """
    backend: Any = None
    try:
        while not calls.closed:
            call = calls.take(_SLICE_S)
            if call is None:
                continue
            if backend is None:
                backend = make()
            _run(backend, Call(call, lambda: calls.closed))
            calls.finish()
    except BaseException as error:  # of any kind: the job must not wait for this rank
        _await_closed(calls, _GRACE_S)
        calls.finish(f"{type(error).__name__}: {error}")
        over.wait()
    if backend is not None:
        backend.close()


def _await_closed(calls: UserCalls, seconds: float) -> None:
    """Wait until the process set has ended, at most so long.

    An exception may follow from the loss or failure of another rank: its connections end, and the backend's code
    notices first. The daemon then ends the set soon, with an error that names that rank.
    """
    end = time.monotonic() + seconds
    while not calls.closed and time.monotonic() < end:
        time.sleep(_LONGEST_NAP_S)


def _run(backend: Backend, call: Call) -> None:
    work = backend.start(call)
    tests, nap = 0, _SHORTEST_NAP_S
    while not call.cancelled:
        ended = backend.test(work)
        if not isinstance(ended, bool):
            raise TypeError(f"{type(backend).__name__}.test() returned {ended!r}, not True or False")
        if ended:
            return
        tests += 1
        if tests > _SPINS:
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_S)


def _group(session: Session, number: int, name: str) -> Group:
    made: ProcessSet = session.process_sets[number] if number else global_process_set
    # Named, because a rule or a table may send allgathers to the backend that is being made, which cannot run them yet.
    carriers = [
        other
        for other, _, operations in session.runtime.backends(number)
        if other in _CORE and "allgather" in operations
    ]

    def exchange(value: Any) -> list[Any]:
        found: list[Any] = allgather_object(
            value, name=f"user_backends.{name}.{number}", process_set=made, backend="|".join(carriers)
        )
        return found

    return Group(number, made.ranks, made.rank(), session.runtime.cross_size, exchange)
