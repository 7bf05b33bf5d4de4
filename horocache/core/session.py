"""The state of one session, from ``init`` to ``shutdown``: the runtime and everything bound to its lifetime."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from horocache.base import tensor_log
from horocache.base.thread_names import ThreadNames
from horocache.core import mpi
from horocache.core.runtime_protocol import Runtime
from horocache.core.stack_watch import StackWatch, watch

if TYPE_CHECKING:
    from horocache.core.process_set import ProcessSet


class Reading(NamedTuple):
    """Counters at one moment, for :func:`horocache.overlap`; in nanoseconds but for the steps."""

    blocked: int
    busy: int
    cpu: int
    steps: int
    daemon: int


class Session:
    """What lives from one ``init`` to the next ``shutdown``.

    Role: owned by :mod:`horocache.core.context`; the operations in :mod:`horocache.collectives.api` keep their unfinished handles in it,
    so that nothing of an old session can be mistaken for something of a new one.
    """

    __slots__ = (
        "_aliases",
        "arguments",
        "job",
        "logs_layers",
        "next_number",
        "overlap_start",
        "pending",
        "process_sets",
        "runtime",
        "sets_lock",
        "stacks",
        "thread_names",
        "unnamed_optimizers",
    )

    def __init__(
        self, runtime: Runtime, arguments: dict[str, str], process_sets: list[ProcessSet], job: mpi.Job
    ) -> None:
        self.runtime = runtime
        self.stacks: StackWatch | None = None
        self.job = job
        self.arguments = arguments
        self.process_sets: dict[int, ProcessSet] = {}  # by number
        self.sets_lock = threading.Lock()  # held by who adds or removes a process set
        self.next_number: tuple[Any, int] | None = None  # what ranks agree on before they add one, under way
        self.overlap_start = Reading(0, 0, time.process_time_ns(), 0, 0)
        self._aliases: list[ProcessSet] = []  # whatever has a number of this session
        for number, made in enumerate(process_sets, 1):
            self.register(number, made)
        self.thread_names = ThreadNames()
        self.unnamed_optimizers: Counter[int] = Counter()  # by process set: those whose parameters have default names
        self.logs_layers = tensor_log.is_enabled()  # asked once: every gradient passes by
        # handle -> a function and its first argument; with the core's answer as the second it gives the caller's result
        self.pending: dict[int, tuple[Callable[[Any, Any], Any], Any]] = {}

    def watch_stacks(self) -> None:
        """Let reports show where this process's threads are."""
        self.stacks = watch(self.runtime)

    def forget_stacks(self) -> None:
        """Give back what that took."""
        if self.stacks is not None:
            self.stacks.close()
            self.stacks = None

    def register(self, number: int, made: ProcessSet) -> None:
        """Give a set, or another object for one that is there, its number."""
        made.process_set_id = number
        self.process_sets.setdefault(number, made)
        self._aliases.append(made)

    def forget(self, number: int) -> None:
        """Take the number of a set that was removed from whatever has it."""
        del self.process_sets[number]
        for made in self._aliases:
            if made.process_set_id == number:
                made.process_set_id = None
        self._aliases = [made for made in self._aliases if made.process_set_id is not None]

    def end(self) -> None:
        """What must not be used after the session is not usable any more."""
        self.pending.clear()
        self.forget_stacks()
        for made in self._aliases:
            made.process_set_id = None
