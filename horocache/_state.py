"""The one default runtime of this process: its start, its end, and who this rank is."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from horocache import endings, mpi
from horocache._session import Runtime, Session
from horocache.errors import ForkedProcessError, HorocacheError, InvalidArgumentError, NotInitializedError, StartupError
from horocache.launch import environment

if TYPE_CHECKING:
    from horocache.process_set import ProcessSet


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


class _Default:
    """The process-wide state. One instance, below."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.inherited: Session | None = None  # in a child of fork: the parent's session, which still answers questions
        self.lock = threading.RLock()  # held by the thread that starts or ends a session
        self.epochs: Counter[tuple[int, ...]] = Counter()  # how often each job was started: () is that of the launcher
        self.hooks_registered = False
        self.last_words: list[Callable[[], None]] = []  # called when the interpreter ends, after the session has
        self.followers: list[Follower] = []


_default = _Default()


def current() -> Session:
    """The running session.

    Raises:
        NotInitializedError: there is none. ForkedProcessError: it belongs to this process's parent.
    """
    session = _default.session
    if session is None:
        raise _why_not_running()
    return session


def running() -> Session | None:
    """The session that runs in this process, or None; a child of fork has none."""
    return _default.session


def _known() -> Session:
    """The session that says who this rank is: the running one, or in a child of fork the parent's.

    Raises:
        NotInitializedError: there is none.
    """
    session = _default.session or _default.inherited
    if session is None:
        raise NotInitializedError()
    return session


def _why_not_running() -> Exception:
    if _default.inherited is not None:
        return ForkedProcessError(
            f"process {os.getpid()} was forked from a process that runs horocache; the runtime belongs to the parent. "
            "Start processes that use horocache with 'spawn', or fork before init()."
        )
    return NotInitializedError()


def _tell_others(why: str) -> None:
    session = _default.session
    if session is not None:
        session.runtime.abort(why)


def _at_exit() -> None:
    endings.tell_uncaught()
    _end(lambda runtime: runtime.stop_with_process())
    for say in _default.last_words:
        say()


def call_at_exit(function: Callable[[], None]) -> None:
    """Call ``function`` when the interpreter ends, if there ever was a session, and after the last one has ended.

    What waits for operations in threads goes on then, with an error, and can be waited for.
    """
    _default.last_words.append(function)


def known_sets() -> dict[int, ProcessSet]:
    """The registered process sets by number, without that of all ranks. Raises NotInitializedError."""
    return _known().process_sets


def follow(follower: Follower) -> None:
    """Tell ``follower`` of the running session, if there is one, and of all later ones."""
    _default.followers.append(follower)
    if _default.session is not None:
        follower.started(_default.session)


def _after_fork_in_child() -> None:
    _default.lock = threading.RLock()  # a thread of the parent may have held it
    session = _default.session
    if session is None:
        return
    for follower in _default.followers:
        follower.forked_child()
    _default.inherited, _default.session = session, None
    session.pending = {}
    session.runtime.forked_child()
    session.forget_stacks()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _knob_text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def init(
    comm: object = None, process_sets: Iterable[ProcessSet | Iterable[int]] | str | None = None, **knobs: object
) -> None:
    """Start this rank's daemon and meet the other ranks of the job. Does nothing if it runs already.

    Several threads may call it at once: one of them starts the daemon, and the others wait for that.

    Args:
        comm: what the job is, where it is not all processes that the launcher started: an mpi4py communicator, or a
            list of ranks; the place in it is then the process's rank. To be called by its members alone.
        process_sets: the sets of ranks, besides that of all ranks, on which operations will be called: a list of
            :class:`~horocache.ProcessSet`, lists of ranks or mpi4py communicators, the same on all ranks, members or
            not. Each gets the number of its place, from 1. A communicator from ``Split`` is a set for each of its
            parts: they take numbers one after the other, by their lowest rank. Each set costs its members
            ``shm_bytes`` of memory. Sets can be added later, too; Horovod asks for ``"dynamic"`` then, which is the
            same here as None.
        knobs: any knob by name (``cycle_time=0.5``), over the environment; ``horocache doctor`` lists them.

    Raises:
        StartupError: the ranks did not all come in time, or two processes claim one rank. VersionSkewError: they differ
            in version, in their process sets or in a knob that must be equal. InvalidArgumentError: an unknown knob or
            a bad value; a process set that has no ranks or ranks that the job does not have, or equals another or that
            of all ranks; or other knobs, process sets or ``comm`` than those of the running session. UnsupportedError:
            ``comm`` is given to a process without MPI, or its MPI cannot be used. ForkedProcessError: this process was
            forked from one that runs horocache.
    """
    arguments = {name: _knob_text(value) for name, value in knobs.items() if value is not None}
    from horocache.process_set import register_again, sets_to_register  # noqa: PLC0415  (it imports this module)

    with _default.lock:
        job = mpi.job_of(comm)
        sets = sets_to_register(process_sets, job)
        if (session := _default.session) is not None:
            _check_same_knobs(session.arguments, arguments)
            if comm is not None and (job.handle, job.ranks) != (session.job.handle, session.job.ranks):
                raise InvalidArgumentError(
                    f"horocache runs already as another job; init() now asks for comm={comm!r}. Call shutdown() first."
                )
            if process_sets is not None:
                register_again(session, sets)
        elif _default.inherited is not None:
            raise _why_not_running()
        else:
            _start(arguments, sets, job)


def _start(arguments: dict[str, str], sets: list[ProcessSet], job: mpi.Job) -> None:
    from horocache.process_set import named_by_all  # noqa: PLC0415  (it imports this module)

    launched = _check_not_of_a_rank() if "rank" not in arguments else None
    sets = named_by_all(sets, job, _start_timeout(arguments))
    session = Session(_make_runtime(arguments, [made.ranks for made in sets], job), arguments, sets, job)
    _default.session = session
    session.watch_stacks()
    for follower in _default.followers:
        follower.started(session)
    if launched is not None:
        environment.note_rank_process(session.runtime.rank, session.runtime.size, launched)
    _default.epochs[tuple(job.ranks)] += 1
    if not _default.hooks_registered:
        _default.hooks_registered = True
        atexit.register(_at_exit)
        endings.watch(_tell_others)


def _start_timeout(arguments: dict[str, str]) -> float:
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    return float(_core.parse_knobs(arguments)["start_timeout"][0])


def _check_not_of_a_rank() -> str | None:
    """The name of the job of several ranks of which the launcher has made this process one, if there is one.

    Raises:
        StartupError: a rank has started this process, which has nothing but that rank's environment.
    """
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    found = _core.identity()
    if int(found["size"]) < 2 or not found["job"]:
        return None
    parent = environment.noted_rank_process()
    if parent is not None and parent.job == found["job"] and parent.pid != os.getpid() and parent.is_alive():
        raise StartupError(
            f"process {os.getpid()} was started by process {parent.pid}, which is rank {parent.rank} of {parent.size}, "
            "and has that rank's environment; it is no rank of its own. Call init() in the rank alone. For a process "
            "that runs alone, set HOROCACHE_RANK=0 and HOROCACHE_SIZE=1 in its environment; for a job of its own, "
            "start it with horocacherun."
        )
    return str(found["job"])


def _check_same_knobs(running: Mapping[str, str], asked: Mapping[str, str]) -> None:
    for name, value in asked.items():
        if running.get(name) != value:
            had = f"{name}={running[name]}" if name in running else f"no {name}"
            raise InvalidArgumentError(
                f"horocache runs already, started with {had}; init() now asks for {name}={value}. "
                "Call shutdown() first."
            )


def _make_runtime(arguments: dict[str, str], process_sets: list[list[int]], job: mpi.Job) -> Runtime:
    from horocache import _core, libraries  # noqa: PLC0415  (the extension is loaded when it is first needed)
    from horocache.observe import flight_files  # noqa: PLC0415

    epoch = _default.epochs[tuple(job.ranks)]
    knobs = _core.parse_knobs(arguments)
    if knobs["library_path"][1] == "default":
        arguments = {**arguments, "library_path": libraries.library_path()}
    if knobs["flight_record"][1] == "default":
        arguments = {**arguments, "flight_record": flight_files.default_folder(environment.own_environment())}
    programs = b""
    if folders := knobs["programs"][0]:
        from horocache.lang import installed  # noqa: PLC0415  (only jobs with programs need the compiler)

        programs = installed.install(folders, any_order=knobs["programs_any_order"][0] in ("1", "true"))
    if knobs["binding"][0] == "cffi":
        from horocache import _cffi  # noqa: PLC0415  (only this route needs cffi)

        return cast(Runtime, _cffi.Runtime(arguments, epoch, process_sets, job.handle, job.ranks, programs))
    return cast(Runtime, _core.Runtime(arguments, epoch, process_sets, job.handle, job.ranks, programs))


def shutdown() -> None:
    """End this rank's part in the job; pending operations of all ranks fail.

    Does nothing if the daemon does not run in this process, so neither in a child of fork.
    """
    _end(lambda runtime: runtime.stop())


def _end(stop: Callable[[Runtime], bool | None]) -> None:
    """End the session. ``stop`` returns whether what is pending goes on until the process is gone."""
    if _default.session is None:  # also while another thread starts one, which may take long
        return
    with _default.lock:
        session = _default.session
        if session is None:
            return
        _default.session = None
        environment.forget_rank_process()
        if isinstance(sys.exc_info()[1], HorocacheError):  # in a finally, or a handler that gives up
            session.runtime.tell_record()
        running = True
        try:
            running = bool(stop(session.runtime))
        finally:
            for follower in _default.followers:
                follower.ended(running)
            session.end()


def is_initialized() -> bool:
    """Whether :func:`init` has been called and :func:`shutdown` has not; a child of fork answers as its parent did.

    In such a child the questions of this module (:func:`rank`, :func:`size`, ...) have the parent's answers;
    operations raise ForkedProcessError.
    """
    return (_default.session or _default.inherited) is not None


def rank() -> int:
    """This process's number in the job, from 0. Raises NotInitializedError."""
    return _known().runtime.rank


def size() -> int:
    """Number of processes in the job. Raises NotInitializedError."""
    return _known().runtime.size


def local_rank() -> int:
    """This process's number on its host. Raises NotInitializedError."""
    return _known().runtime.local_rank


def local_size() -> int:
    """Number of the job's processes on this host. Raises NotInitializedError."""
    return _known().runtime.local_size


def cross_rank() -> int:
    """Number of this host in the job. Raises NotInitializedError."""
    return _known().runtime.cross_rank


def cross_size() -> int:
    """Number of hosts in the job. Raises NotInitializedError."""
    return _known().runtime.cross_size


def is_homogeneous() -> bool:
    """Whether every host runs equally many ranks. Raises NotInitializedError."""
    runtime = _known().runtime
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
    session = _default.session
    if session is not None:
        session.runtime.count_step()


def abort(why: str) -> None:
    """Tell all ranks that this one cannot go on: everything pending fails with AbortedError and this text."""
    current().runtime.abort(why)


def mpi_threads_supported() -> bool:
    """Whether this program may use MPI from several threads while horocache does.

    Raises:
        InvalidArgumentError: the job does not use MPI (Horovod raises ValueError here as well).
    """
    level = _known().runtime.mpi
    if level == 0:
        raise InvalidArgumentError("this job does not use MPI; mpi_enabled() tells.")
    return level > 1


def mpi_enabled() -> bool:
    """Whether the ranks of the running job are connected over MPI, too; False where none runs."""
    session = _default.session or _default.inherited
    return session is not None and session.runtime.mpi > 0


def mpi_built() -> bool:
    """Whether MPI can be used: always, as its library is looked for when a job starts."""
    return True


def gloo_enabled() -> bool:
    """Whether ranks talk over gloo: no, horocache has its own channels."""
    return False


def gloo_built() -> bool:
    """Whether gloo is there: no."""
    return False


def nccl_built() -> int:
    """Version code of the NCCL backend; 0: there is none in this version."""
    return 0


def ddl_built() -> bool:
    """Whether IBM's DDL is there: no."""
    return False


def ccl_built() -> bool:
    """Whether Intel's oneCCL is there: no."""
    return False


def cuda_built() -> bool:
    """Whether there is a CUDA backend: not in this version."""
    return False


def rocm_built() -> bool:
    """Whether there is a ROCm backend: no."""
    return False
