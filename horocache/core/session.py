"""The state of one session, from ``init`` to ``shutdown``: the runtime and everything bound to its lifetime."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from horocache.base import tensor_log
from horocache.base.compressed_bytes import CompressedBytes
from horocache.base.residuals import Residuals
from horocache.base.thread_names import ThreadNames
from horocache.core import mpi
from horocache.core.runtime_protocol import Runtime
from horocache.core.stack_watch import StackWatch, watch

if TYPE_CHECKING:
    from horocache.autotune.tuner import Tuner
    from horocache.core.process_set import ProcessSet


class Reading(NamedTuple):
    """Counters at one moment, for :func:`horocache.overlap`; in nanoseconds, except ``steps``."""

    blocked: int
    busy: int
    cpu: int
    steps: int
    daemon: int


class Session:
    """The runtime, process sets and unfinished handles between one ``init`` and the next ``shutdown``.

    Role: owned by :mod:`horocache.core.context`. The collectives keep their unfinished handles in it, so a handle of an
    old session is never mistaken for a handle of a new one.
    """

    __slots__ = (
        "_aliases",
        "arguments",
        "checks_finite",
        "compressed",
        "dispatch_channels",
        "dispatch_handles",
        "job",
        "logs_layers",
        "next_number",
        "outcomes",
        "overlap_start",
        "pending",
        "process_sets",
        "residuals",
        "runtime",
        "sets_lock",
        "stacks",
        "stores",
        "thread_names",
        "tuner",
        "tunes_groups",
        "unnamed_optimizers",
        "windows",
    )

    def __init__(
        self, runtime: Runtime, arguments: dict[str, str], process_sets: list[ProcessSet], job: mpi.Job
    ) -> None:
        self.runtime = runtime
        self.stacks: StackWatch | None = None
        self.job = job
        self.arguments = arguments
        self.process_sets: dict[int, ProcessSet] = {}  # by number
        self.sets_lock = threading.Lock()  # held by the thread that adds or removes a process set
        self.next_number: tuple[Any, int] | None = None  # the agreement in flight about a set's number
        self.overlap_start = Reading(0, 0, time.process_time_ns(), 0, 0)
        self._aliases: list[ProcessSet] = []  # all objects with a number of this session
        for number, made in enumerate(process_sets, 1):
            self.register(number, made)
        self.thread_names = ThreadNames()
        self.tuner: Tuner | None = None  # on rank 0 of a job that is tuned
        # An optimizer of this session that can change its number of groups, or None.
        self.tunes_groups: object = None
        self.unnamed_optimizers: Counter[int] = Counter()  # by process set: optimizers with default names
        self.stores: Counter[int] = Counter()  # by process set: key-value stores, whose names have their numbers
        self.logs_layers = tensor_log.is_enabled()  # read once, because every gradient needs it
        self.checks_finite = runtime.knobs()["check_finite"][0] in ("1", 1)  # of tensors that the core sees encoded
        self.compressed = CompressedBytes()
        self.residuals = Residuals()
        self.windows: dict[Any, Any] = {}  # of one-sided exchanges; see horocache.moe.window
        self.dispatch_channels: dict[Any, Any] = {}  # by process set and name; see horocache.moe.channel
        self.dispatch_handles: Counter[Any] = Counter()  # by process set: handles of horocache.moe.dispatch
        # handle -> (finish, state): finish(state, answer of the core) is the caller's result
        self.pending: dict[int, tuple[Callable[[Any, Any], Any], Any]] = {}
        # The same for operations that the core has forgotten, because a wait for them and others was interrupted.
        self.outcomes: dict[int, tuple[Callable[[Any, Any], Any], Any]] = {}

    def watch_stacks(self) -> None:
        """Show the stacks of this process's threads in reports."""
        self.stacks = watch(self.runtime)

    def forget_stacks(self) -> None:
        """Undo :meth:`watch_stacks`."""
        if self.stacks is not None:
            self.stacks.close()
            self.stacks = None

    def register(self, number: int, made: ProcessSet) -> None:
        """Give a set its number; ``made`` may be another object for a registered set."""
        made.process_set_id = number
        self.process_sets.setdefault(number, made)
        self._aliases.append(made)

    def forget(self, number: int) -> None:
        """Remove a set: no object keeps its number."""
        del self.process_sets[number]
        self.residuals.forget(process_set=number)
        for made in self._aliases:
            if made.process_set_id == number:
                made.process_set_id = None
        self._aliases = [made for made in self._aliases if made.process_set_id is not None]

    def end(self) -> None:
        """Invalidate the handles, residuals, stacks and set numbers of the session."""
        self.pending.clear()
        self.outcomes.clear()
        self.residuals.forget()
        self.windows.clear()
        self.dispatch_channels.clear()
        self.forget_stacks()
        for made in self._aliases:
            made.process_set_id = None
