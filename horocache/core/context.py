"""The session of this process, and queries about it: rank, size, counters.

:mod:`horocache.core.lifecycle` starts and ends sessions; all other modules get the running session from this one.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from horocache.core.metrics import Metrics
from horocache.core.session import Session
from horocache.errors import ForkedProcessError, NotInitializedError

if TYPE_CHECKING:
    from horocache.core.process_set import ProcessSet


class Follower(Protocol):
    """Receives notice of each session's start and end; for kernels that a framework calls from its own threads."""

    def started(self, session: Session) -> None:
        """Called when a session has started."""

    def ended(self, running: bool) -> None:
        """Called when the session has ended. Its runtime must not be used after this call.

        Args:
            running: True if the process is about to end and pending operations go on until then, so that their memory
                must stay. False if the runtime has been stopped.
        """

    def forked_child(self) -> None:
        """Called in a child of fork(), whose parent has the session."""


class UserBackend(NamedTuple):
    """A backend that the program has written; see :mod:`horocache.user_backends`."""

    made_by: Callable[[Any], Any]  # the class
    operations: list[str]
    dtypes: list[str]
    reduced_dtypes: list[str]
    missing: Callable[[], str | None]  # why it cannot run here; None: it can


class ProcessState:
    """The process-wide state, of which ``state`` is the one instance.

    Only :mod:`horocache.core.lifecycle` and the fork handler below set its session.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self.inherited: Session | None = None  # in a child of fork(): the parent's session, which still answers queries
        self.lock = threading.RLock()  # held by the thread that starts or ends a session
        self.epochs: Counter[tuple[int, ...]] = Counter()  # starts of each job, by its ranks; (): the launcher's job
        self.hooks_registered = False
        self.last_words: list[Callable[[], None]] = []  # called when the interpreter ends, after the session's end
        self.followers: list[Follower] = []
        self.user_backends: dict[str, UserBackend] = {}  # by name


state = ProcessState()


def current() -> Session:
    """Return the running session.

    Raises:
        NotInitializedError: no session runs. ForkedProcessError: the session belongs to this process's parent.
    """
    session = state.session
    if session is None:
        raise why_not_running()
    return session


def running() -> Session | None:
    """Return the session that runs in this process, or None; in a child of fork() it is None."""
    return state.session


def known() -> Session:
    """Return the session that identifies this rank: the running one or, in a child of fork(), the parent's.

    Raises:
        NotInitializedError: neither exists.
    """
    session = state.session or state.inherited
    if session is None:
        raise NotInitializedError()
    return session


def why_not_running() -> Exception:
    """Return the error for an operation in a process without a running session."""
    if state.inherited is not None:
        return ForkedProcessError(
            f"process {os.getpid()} was forked from a process that runs horocache; the runtime belongs to the parent. "
            "Start processes that use horocache with 'spawn', or fork before init()."
        )
    return NotInitializedError()


def call_at_exit(function: Callable[[], None]) -> None:
    """Call ``function`` when the interpreter ends, after the last session has ended; not if there never was a session.

    The end of the session fails the waits of other threads with an error, so ``function`` can join such threads.
    """
    state.last_words.append(function)


def known_sets() -> dict[int, ProcessSet]:
    """Return the registered process sets by number, except the global one. Raises NotInitializedError."""
    return known().process_sets


def follow(follower: Follower) -> None:
    """Notify ``follower`` of the running session, if there is one, and of all later sessions."""
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
    """True if :func:`init` has been called and :func:`shutdown` has not.

    In a child of fork(), this function and the other queries (:func:`rank`, :func:`size`, ...) give the parent's
    answers, and operations raise ForkedProcessError.
    """
    return (state.session or state.inherited) is not None


def rank() -> int:
    """Rank of this process in the job, from 0. Raises NotInitializedError."""
    return known().runtime.rank


def size() -> int:
    """Number of processes in the job. Raises NotInitializedError."""
    return known().runtime.size


def local_rank() -> int:
    """Rank of this process among the job's processes on its host, from 0. Raises NotInitializedError."""
    return known().runtime.local_rank


def local_size() -> int:
    """Number of the job's processes on this host. Raises NotInitializedError."""
    return known().runtime.local_size


def cross_rank() -> int:
    """Number of this host among the job's hosts, from 0. Raises NotInitializedError."""
    return known().runtime.cross_rank


def cross_size() -> int:
    """Number of hosts in the job. Raises NotInitializedError."""
    return known().runtime.cross_size


def is_homogeneous() -> bool:
    """True if every host runs the same number of ranks. Raises NotInitializedError."""
    return bool(known().runtime.homogeneous)


def metrics() -> Metrics:
    """Return the counters of this rank since ``init``, by name; ``metrics().since(before)`` is what was added since.

    A counter with an index (``op_count.NAME``, ``op_ns.NAME``, ``wait_ns.RANK``, ``fused_size_log2.N``,
    ``moe_rows_CAUSE.RANK``) is present as soon as it is not 0.

    Control plane:

    * ``rounds``: agreements; ``slow_rounds``: agreements that went through the coordinator.
    * ``flushes``: times that this rank published new requests.
    * ``cache_hits``, ``cache_misses``, ``cache_changed``, ``cache_evictions``, ``cache_growths``: of response caches.
    * ``control_bytes``, ``control_frames``: sent by this rank.
    * ``held_back``: allreduces that waited before their proposal, so that those of higher priorities come first.
    * ``sleeps``, ``wakeups``: of the threads that drive this rank.
    * ``lock_taken``: times that a waiting thread took the progress lock and drove the rank itself.
    * ``wakes``: system calls that wake another thread or rank; ``yields``: system calls by which waiting threads yield
      their core; ``system_calls``: these, sleeps and waits together.

    Data plane:

    * ``operations``: of all backends; ``payload_bytes``: of their tensors.
    * ``bytes_copied``: copied into and out of buffers; ``bytes_folded``: of results, each store counted once.
    * ``small_lane_operations``: fused operations that ran in a small lane of their backend (``small_lanes``).
    * ``bytes_into_views``: of gradients that were copied into bucket views.
    * ``fused_operations``: fused buffers that lanes executed; ``fused_size_log2.N``: those of more than 2^(N-1) and at
      most 2^N bytes.
    * ``inline_operations``: small allreduces that needed no buffer, because their data came with the round.
    * ``program_operations``: operations that ran as compiled programs.
    * ``op_count.NAME``: completed operations; ``op_ns.NAME``: their nanoseconds from submission to completion, summed.
    * ``wait_ns.RANK``: nanoseconds that this rank slept while it waited for that rank: for its part of an operation, or
      for its submission, which is known for cached operations only.

    Time, see :func:`horocache.overlap`:

    * ``lane_busy_ns``: nanoseconds in which at least one lane of this rank had work.
    * ``blocked_ns``: nanoseconds in which threads waited for operations, summed over the threads.
    * ``progress_cpu_ns``: processor time of the progress thread.
    * ``steps``: optimizer steps.

    Compression, of NumPy arrays and torch tensors:

    * ``compressed_bytes``: of the tensors that were compressed before they were sent; ``wire_bytes``: sent instead.

    One-sided exchanges of mixtures of experts, once there was one:

    * ``moe_rounds``, ``moe_failed_rounds``: exchanges; ``moe_batches_sent``, ``moe_batches_served``: with tokens.
    * ``moe_bytes_written``: of batches and results; ``moe_sleeps``: times that this rank slept in an exchange.
    * ``moe_rows_delivered``: of this rank's tokens, one for each rank that a token went to. ``moe_rows_own_timeout``,
      ``moe_rows_host_left``, ``moe_rows_ring_full``, ``moe_rows_lost_rank``: lost ones by cause; with an index, such as
      ``moe_rows_host_left.RANK``, those of one rank's experts.

    Messages, except those that failed: ``messages_sent``, ``messages_received``, ``message_bytes_sent``,
    ``message_bytes_received``. Of this process: ``allocations`` that this library's own code made; in steady state it
    makes none.

    Raises:
        NotInitializedError: before ``init`` or after ``shutdown``.
    """
    session = current()
    return Metrics({**session.runtime.metrics(), **session.compressed.counters()})


def count_step() -> None:
    """Count an optimizer step of this rank; does nothing if no session runs."""
    session = state.session
    if session is not None:
        session.runtime.count_step()


def abort(why: str) -> None:
    """Abort the job: the pending operations of all ranks fail with AbortedError, whose message contains ``why``."""
    current().runtime.abort(why)
