"""The session of this process, and the questions that it answers: who this rank is, and what it has done.

:mod:`horocache.core.lifecycle` starts and ends sessions; everything else asks here for the one that runs.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from horocache.core.session import Session
from horocache.errors import ForkedProcessError, NotInitializedError

if TYPE_CHECKING:
    from horocache.core.process_set import ProcessSet


class Follower(Protocol):
    """Who has to know which session is running: kernels that a framework calls from threads of its own."""

    def started(self, session: Session) -> None:
        """A session runs now."""

    def ended(self, running: bool) -> None:
        """Its runtime must not be used after this call.

        Args:
            running: the process is about to end, and until then pending operations go on: their memory must stay. If
                not, the runtime has been stopped.
        """

    def forked_child(self) -> None:
        """This is a child of the process in which the session runs."""


class ProcessState:
    """The process-wide state. One instance, below; only :mod:`horocache.core.lifecycle` changes it, and a fork."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.inherited: Session | None = None  # in a child of fork: the parent's session, which still answers questions
        self.lock = threading.RLock()  # held by the thread that starts or ends a session
        self.epochs: Counter[tuple[int, ...]] = Counter()  # how often each job was started: () is that of the launcher
        self.hooks_registered = False
        self.last_words: list[Callable[[], None]] = []  # called when the interpreter ends, after the session has
        self.followers: list[Follower] = []


state = ProcessState()


def current() -> Session:
    """The running session.

    Raises:
        NotInitializedError: there is none. ForkedProcessError: it belongs to this process's parent.
    """
    session = state.session
    if session is None:
        raise why_not_running()
    return session


def running() -> Session | None:
    """The session that runs in this process, or None; a child of fork has none."""
    return state.session


def known() -> Session:
    """The session that says who this rank is: the running one, or in a child of fork the parent's.

    Raises:
        NotInitializedError: there is none.
    """
    session = state.session or state.inherited
    if session is None:
        raise NotInitializedError()
    return session


def why_not_running() -> Exception:
    """The error for an operation in a process without a running session."""
    if state.inherited is not None:
        return ForkedProcessError(
            f"process {os.getpid()} was forked from a process that runs horocache; the runtime belongs to the parent. "
            "Start processes that use horocache with 'spawn', or fork before init()."
        )
    return NotInitializedError()


def call_at_exit(function: Callable[[], None]) -> None:
    """Call ``function`` when the interpreter ends, if there ever was a session, and after the last one has ended.

    What waits for operations in threads goes on then, with an error, and can be waited for.
    """
    state.last_words.append(function)


def known_sets() -> dict[int, ProcessSet]:
    """The registered process sets by number, without that of all ranks. Raises NotInitializedError."""
    return known().process_sets


def follow(follower: Follower) -> None:
    """Tell ``follower`` of the running session, if there is one, and of all later ones."""
    state.followers.append(follower)
    if state.session is not None:
        follower.started(state.session)


def _after_fork_in_child() -> None:
    state.lock = threading.RLock()  # a thread of the parent may have held it
    session = state.session
    if session is None:
        return
    for follower in state.followers:
        follower.forked_child()
    state.inherited, state.session = session, None
    session.pending = {}
    session.runtime.forked_child()
    session.forget_stacks()


os.register_at_fork(after_in_child=_after_fork_in_child)


def is_initialized() -> bool:
    """Whether :func:`init` has been called and :func:`shutdown` has not; a child of fork answers as its parent did.

    In such a child the questions of this module (:func:`rank`, :func:`size`, ...) have the parent's answers;
    operations raise ForkedProcessError.
    """
    return (state.session or state.inherited) is not None


def rank() -> int:
    """This process's number in the job, from 0. Raises NotInitializedError."""
    return known().runtime.rank


def size() -> int:
    """Number of processes in the job. Raises NotInitializedError."""
    return known().runtime.size


def local_rank() -> int:
    """This process's number on its host. Raises NotInitializedError."""
    return known().runtime.local_rank


def local_size() -> int:
    """Number of the job's processes on this host. Raises NotInitializedError."""
    return known().runtime.local_size


def cross_rank() -> int:
    """Number of this host in the job. Raises NotInitializedError."""
    return known().runtime.cross_rank


def cross_size() -> int:
    """Number of hosts in the job. Raises NotInitializedError."""
    return known().runtime.cross_size


def is_homogeneous() -> bool:
    """Whether every host runs equally many ranks. Raises NotInitializedError."""
    runtime = known().runtime
    return runtime.local_size * runtime.cross_size == runtime.size


def metrics() -> dict[str, Any]:
    """Counters of this rank since ``init``.

    Of the control plane: ``rounds`` (agreements), ``slow_rounds`` (those that went through the coordinator),
    ``flushes`` (times that this rank showed new requests), ``cache_hits``, ``cache_misses``, ``cache_changed``,
    ``cache_evictions``, ``cache_growths``, ``control_bytes`` and ``control_frames`` (sent), ``sleeps``, ``wakeups``,
    ``role_taken`` (times that a waiting thread drove the rank itself), ``wakes`` (system calls that wake somebody),
    ``yields`` (those that give a core up in turns), ``system_calls`` (these, sleeps and waits together).

    Of the data plane: ``operations`` (of all backends), ``payload_bytes`` (of the tensors), ``bytes_copied`` (moved in
    and out of buffers), ``bytes_folded`` (of results, each store counted once), ``bytes_placed`` (of gradients that
    were copied into their places in shared memory while the backward pass ran), ``fused_operations`` (buffers; per
    step, divide by the steps), ``fused_size_log2.N`` (of these, those of more than 2^(N-1) and at most 2^N bytes),
    ``inline_operations`` (small ones that needed none, as their data came with the round), ``op_count.NAME`` and
    ``op_ns.NAME`` (completed operations and the nanoseconds from submission to completion, summed), ``wait_ns.RANK``
    (nanoseconds that this rank slept because that rank had not come, which is only known of cached operations, or did
    not do its part). Indexed entries are there once they are not zero.

    Of this process: ``allocations`` (that this library's own code made; none in steady state).

    Of time, see :func:`horocache.overlap`: ``lane_busy_ns`` (nanoseconds in which at least one lane of this rank had
    something to do), ``blocked_ns`` (in which threads waited for operations, added up over them),
    ``coordinator_cpu_ns`` (processor time of the coordinator thread), ``steps`` (of optimizers).

    Of messages, without those that failed: ``messages_sent``, ``messages_received``, ``message_bytes_sent``,
    ``message_bytes_received``.

    Raises:
        NotInitializedError: before ``init`` or after ``shutdown``.
    """
    return current().runtime.metrics()


def count_step() -> None:
    """Count a step of an optimizer of this rank; does nothing where no session runs."""
    session = state.session
    if session is not None:
        session.runtime.count_step()


def abort(why: str) -> None:
    """Tell all ranks that this one cannot go on: everything pending fails with AbortedError and this text."""
    current().runtime.abort(why)
