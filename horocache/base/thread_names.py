"""Automatic names of operations that Python threads call without a name.

Note [Automatic names and threads]
Operations without a name are numbered in the order of their calls, which must be the same on all ranks. The program
determines that order within a thread, but not between threads. So each thread counts for itself:

* The main thread, and threads that Python has not started, such as callback threads of a framework: the core counts
  the operations of all these threads together.
* Any other thread: the thread's name is part of the operation's name. For example, the first unnamed allreduce of the
  thread "loader" is "allreduce.noname.loader.0". The number in a name that Python has generated, such as "Thread-7", is
  left out: it counts all threads of a process, which may differ from rank to rank. Two threads of the same name that
  are alive at the same time are refused, because their order may differ from rank to rank.
* The threads of a pool, which run any task: they share one name, so that two operations at the same time are refused as
  duplicates.
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
    """An automatic name, and the entry ``handles[place]`` in which the caller stores the operation's handle."""

    name: str
    handles: list[int]
    place: int


def counts_by_itself() -> bool:
    """True if the calling thread numbers its unnamed operations by itself."""
    thread = threading.current_thread()
    return thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)


class Scope(NamedTuple):
    """The part of automatic names that stands for a thread, and True if the thread belongs to a pool."""

    text: str
    pool: bool


class ThreadNames:
    """The automatic names of one session's operations, except those that the core makes for the main thread.

    Role: owned by the session; used by any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[str, weakref.ref[threading.Thread]] = {}
        # (thread's name, operation, process set) -> the last handle of each number.
        self._handles: dict[tuple[str, int, int], list[int]] = {}

    def take(self, op: int, process_set: int, pending: Container[int]) -> Taken:
        """Return a name for the next operation of the calling thread, with the lowest number that is not in flight.

        A thread of a pool always gets number 0.

        Args:
            op: number of the operation.
            process_set: number of the process set.
            pending: the handles in flight.

        Raises:
            InvalidArgumentError: another live thread of the same name calls operations without a name, too.
        """
        scope, pool = self.scope()
        with self._lock:
            handles = self._handles.setdefault((scope, op, process_set), [])
            free = (place for place, handle in enumerate(handles) if pool or handle not in pending)
            place = next(free, len(handles))
            if place == len(handles):
                handles.append(-1)
        return Taken(f"noname.{scope}.{place}", handles, place)

    def scope(self) -> Scope:
        """Return the text that stands for the calling thread, which counts by itself, in names.

        Raises:
            InvalidArgumentError: another live thread of the same name calls operations without a name, too.
        """
        thread = threading.current_thread()
        pool = thread in getattr(pools, "_threads_queues", ())
        text = re.sub(r"(-\d+)?_\d+$", "", thread.name) if pool else _MADE_UP.sub(r"\1", thread.name)
        if not pool:
            with self._lock:
                self._check_owner(text, thread)
        return Scope(text, pool)

    def _check_owner(self, scope: str, thread: threading.Thread) -> None:
        owner = self._owners[scope]() if scope in self._owners else None
        if owner is not None and owner is not thread and owner.is_alive():
            raise InvalidArgumentError(
                f"the threads {owner.name!r} and {thread.name!r} both call operations without a name, and which of "
                "them comes first may differ from rank to rank. Give each operation a name (name=...), or the threads "
                "names of their own, the same on all ranks."
            )
        self._owners[scope] = weakref.ref(thread)
