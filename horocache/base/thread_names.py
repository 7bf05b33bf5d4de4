"""Names for operations without one that are called in a thread.

Note [Automatic names and threads]
Operations without a name are numbered in the order in which they are called, which must be the same on all ranks. The
order within a thread is the program's; that between threads is not. So each thread counts for itself:

* the main thread, and threads that others than Python have made, such as those of a framework that calls back: the
  core counts these together;
* any other thread: its name is a part of the operation's. Where Python made up the name, its number is left out, since
  it counts all threads of a process, which need not be the same on all ranks. Two threads of one name that are alive
  together are refused, because nobody can tell which of them comes first on another rank;
* the threads of a pool, which run whatever comes: one name for all of them, so that two operations at once are refused
  as duplicates.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Container
from concurrent.futures import thread as pools
from typing import NamedTuple

from horocache.errors import InvalidArgumentError

_MADE_UP = re.compile(r"(Thread)-\d+")


class Taken(NamedTuple):
    """A name, and where the handle of its operation is to be kept."""

    name: str
    handles: list[int]
    place: int


def counts_by_itself() -> bool:
    """Whether the calling thread is one that has names of its own."""
    thread = threading.current_thread()
    return thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)


class ThreadNames:
    """The names of one session's operations without a name, but for those of the main thread.

    Role: owned by the session; used by any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[str, weakref.ref[threading.Thread]] = {}
        # Of a thread's name, an operation and a process set: the last handle of each number.
        self._handles: dict[tuple[str, int, int], list[int]] = {}

    def take(self, op: int, process_set: int, pending: Container[int]) -> Taken:
        """A name for the next operation of the calling thread: the lowest number that is not in flight.

        Raises:
            InvalidArgumentError: another thread of this thread's name calls operations without a name, too.
        """
        thread = threading.current_thread()
        pool = thread in getattr(pools, "_threads_queues", ())
        scope = re.sub(r"(-\d+)?_\d+$", "", thread.name) if pool else _MADE_UP.sub(r"\1", thread.name)
        with self._lock:
            if not pool:
                self._check_owner(scope, thread)
            handles = self._handles.setdefault((scope, op, process_set), [])
            free = (place for place, handle in enumerate(handles) if pool or handle not in pending)
            place = next(free, len(handles))
            if place == len(handles):
                handles.append(-1)
        return Taken(f"noname.{scope}.{place}", handles, place)

    def _check_owner(self, scope: str, thread: threading.Thread) -> None:
        owner = self._owners[scope]() if scope in self._owners else None
        if owner is not None and owner is not thread and owner.is_alive():
            raise InvalidArgumentError(
                f"the threads {owner.name!r} and {thread.name!r} both call operations without a name, and which of "
                "them comes first may differ from rank to rank. Give each operation a name (name=...), or the threads "
                "names of their own, the same on all ranks."
            )
        self._owners[scope] = weakref.ref(thread)
