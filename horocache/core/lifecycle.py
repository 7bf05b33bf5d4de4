"""Starts and ends the session of this process: ``init``, ``shutdown``, and the end of the interpreter."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, cast

from horocache.core import flight_files, launcher_environment, library_path, mpi, uncaught_exceptions
from horocache.core.context import state, why_not_running
from horocache.core.process_set import ProcessSet, named_by_all, register_again, sets_to_register
from horocache.core.runtime_protocol import Runtime
from horocache.core.session import Session
from horocache.errors import HorocacheError, InvalidArgumentError, StartupError, UnsupportedError

if TYPE_CHECKING:
    from horocache.autotune.tuner import Tuner

_logger = logging.getLogger("horocache.user_backends")


def _tell_others(why: str) -> None:
    session = state.session
    if session is not None:
        session.runtime.abort(why)


def _at_exit() -> None:
    uncaught_exceptions.tell_uncaught()
    _end(lambda runtime: runtime.stop_with_process())
    for say in state.last_words:
        say()


def _knob_text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def init(
    comm: object = None, process_sets: Iterable[ProcessSet | Iterable[int]] | str | None = None, **knobs: object
) -> None:
    """Start this rank's daemon and connect it with the other ranks of the job. Does nothing if it runs already.

    Several threads may call it at once: one of them starts the daemon, and the others wait until it runs.

    Args:
        comm: the job, if it is not all processes that the launcher started: an mpi4py communicator or a list of ranks.
            The rank of a process is then its position in it, and only the members call ``init``.
        process_sets: the process sets for operations, besides the set of all ranks: a list of
            :class:`~horocache.ProcessSet`, lists of ranks or mpi4py communicators. Every rank, member or not, gives the
            same list. The number of a set is its position in the list, from 1. A communicator from ``Split`` adds one
            set for each of its parts, which take consecutive numbers in the order of their lowest rank. Each set costs
            its members ``shm_bytes`` of memory. Sets can also be added later; Horovod requires ``"dynamic"`` for that,
            which is the same here as None.
        knobs: any knob by name (``cycle_time=0.5``), which overrides the environment; ``horocache doctor`` lists the
            knobs.

    Raises:
        StartupError: not all ranks came in time, or two processes claim the same rank. VersionSkewError: the ranks
            differ in version, in their process sets or in a knob that must be equal. InvalidArgumentError: a knob is
            unknown or has a bad value; a process set is empty, has ranks that the job does not have, or equals another
            set or that of all ranks; or knobs, process sets or ``comm`` differ from those of the running session.
            UnsupportedError: ``comm`` is given to a process without MPI, or its MPI cannot be used. ForkedProcessError:
            this process was forked from one that runs horocache.
    """
    arguments = {name: _knob_text(value) for name, value in knobs.items() if value is not None}
    with state.lock:
        job = mpi.job_of(comm)
        sets = sets_to_register(process_sets, job)
        if (session := state.session) is not None:
            _check_same_knobs(session.arguments, arguments)
            if comm is not None and (job.handle, job.ranks) != (session.job.handle, session.job.ranks):
                raise InvalidArgumentError(
                    f"horocache runs already as another job; init() now asks for comm={comm!r}. Call shutdown() first."
                )
            if process_sets is not None:
                register_again(session, sets)
        elif state.inherited is not None:
            raise why_not_running()
        else:
            _start(arguments, sets, job)


def _start(arguments: dict[str, str], sets: list[ProcessSet], job: mpi.Job) -> None:
    launched = _check_not_of_a_rank() if "rank" not in arguments else None
    sets = named_by_all(sets, job, _start_timeout(arguments))
    runtime, tuner = _make_runtime(arguments, [made.ranks for made in sets], job)
    session = Session(runtime, arguments, sets, job)
    state.session = session
    session.watch_stacks()
    for follower in state.followers:
        follower.started(session)
    if tuner is not None:
        session.tuner = tuner
        tuner.start()
    if launched is not None:
        launcher_environment.note_rank_process(session.runtime.rank, session.runtime.size, launched)
    state.epochs[tuple(job.ranks)] += 1
    if not state.hooks_registered:
        state.hooks_registered = True
        atexit.register(_at_exit)
        uncaught_exceptions.watch(_tell_others)


def _start_timeout(arguments: dict[str, str]) -> float:
    return float(_parse_knobs(arguments)["start_timeout"][0])


def _parse_knobs(arguments: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the knobs but ``select``, whose rules the runtime checks: it knows the backends of the program."""
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    return _core.parse_knobs({**arguments, "select": ""})


def _check_not_of_a_rank() -> str | None:
    """Return the job's name if a launcher started this process as one of several ranks; else None.

    Raises:
        StartupError: a rank has started this process, which has only inherited that rank's environment.
    """
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    found = _core.identity()
    if int(found["size"]) < 2 or not found["job"]:
        return None
    parent = launcher_environment.noted_rank_process()
    if parent is not None and parent.job == found["job"] and parent.pid != os.getpid() and parent.is_alive():
        raise StartupError(
            f"process {os.getpid()} was started by process {parent.pid}, which is rank {parent.rank} of {parent.size}, "
            "and has that rank's environment; it is not a rank. Call init() in the rank only. For a process "
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


def _make_runtime(
    arguments: dict[str, str], process_sets: list[list[int]], job: mpi.Job
) -> tuple[Runtime, Tuner | None]:
    """Start the runtime; return it, and on rank 0 of a job that is tuned its tuner, which has not started."""
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    epoch = state.epochs[tuple(job.ranks)]
    knobs = _parse_knobs(arguments)
    if knobs["library_path"][1] == "default":
        arguments = {**arguments, "library_path": library_path.library_path()}
    if knobs["flight_record"][1] == "default":
        arguments = {**arguments, "flight_record": flight_files.default_folder(launcher_environment.own_environment())}
    programs = _programs(knobs, _size_of(job, arguments))
    tuning = _tuning_rules(arguments, knobs, job)
    make_tuner = _tuner_maker(arguments, knobs, job)
    backends = _user_backends()
    if knobs["binding"][0] == "cffi":
        if backends:
            raise UnsupportedError(f"HOROCACHE_BINDING=cffi runs no backends of the program ({backends[0][0]}).")
        from horocache.core import cffi_runtime  # noqa: PLC0415  (only this route needs cffi)

        runtime = cast(
            Runtime, cffi_runtime.Runtime(arguments, epoch, process_sets, job.handle, job.ranks, programs, tuning)
        )
    else:
        made = _core.Runtime(arguments, epoch, process_sets, job.handle, job.ranks, programs, tuning, backends)
        runtime = cast(Runtime, made)
    tunes = make_tuner is not None and runtime.rank == 0 and runtime.size > 1
    return runtime, make_tuner(runtime, tuning) if make_tuner is not None and tunes else None


def _programs(knobs: Mapping[str, tuple[str, str]], size: int) -> bytes:
    """Return the compiled programs of the job, encoded; empty if it has none."""
    two_level_exchange = knobs["moe_exchange"][0] == "hierarchical"
    folders = knobs["programs"][0]
    if not folders and not two_level_exchange:
        return b""
    from horocache.lang import registry, two_level  # noqa: PLC0415  (only jobs with programs need the compiler)

    any_order = knobs["programs_any_order"][0] in ("1", "true")
    return registry.install(folders, any_order, two_level.library(size) if two_level_exchange else ())


def _size_of(job: mpi.Job, arguments: Mapping[str, str]) -> int:
    """Return the number of ranks, as far as it is known before the start; 1 if it is not."""
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    if job.communicator is not None:
        return int(job.communicator.Get_size())
    return len(job.ranks) or int(arguments.get("size", _core.identity()["size"]))


def _user_backends() -> list[tuple[str, list[str], list[str], list[str]]]:
    """The registered backends that can run here, as the runtime takes them; in one order on all ranks."""
    found = []
    for name, one in sorted(state.user_backends.items()):
        reason = one.missing()
        if reason is None:
            found.append((name, one.operations, one.dtypes, one.reduced_dtypes))
        else:
            _logger.warning("backend %s is left out of this job: %s", name, reason)
    return found


def _rank_in(job: mpi.Job, arguments: Mapping[str, str]) -> int:
    """Return this process's rank in the job, as far as it is known before the start; below 0 if it is not."""
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    if job.communicator is not None:
        return int(job.communicator.Get_rank())
    rank = int(arguments.get("rank", _core.identity()["rank"]))
    return job.ranks.index(rank) if rank in job.ranks else rank


def _tuner_maker(
    arguments: Mapping[str, str], knobs: Mapping[str, tuple[str, str]], job: mpi.Job
) -> Callable[[Runtime, str], Tuner] | None:
    """Check the knobs of autotune, and read its file on rank 0; return the tuner's maker, or None without autotune."""
    if knobs["autotune"][0] not in ("1", "true") and not knobs["autotune_load"][0]:
        return None
    from horocache.autotune import tuner  # noqa: PLC0415  (only jobs that are tuned need it)

    loaded = tuner.check(knobs, _rank_in(job, arguments) <= 0)
    return lambda runtime, rules: tuner.Tuner(runtime, rules, loaded)


def _tuning_rules(arguments: Mapping[str, str], knobs: Mapping[str, tuple[str, str]], job: mpi.Job) -> str:
    """Return the selector rules of the tuning table, on rank 0, which gives them to all ranks; else an empty text."""
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    path = knobs["tuning_table"][0]
    is_whole = not job.ranks and not job.handle
    if not path or _rank_in(job, arguments) > 0:
        return ""
    from horocache.tuning import lookup  # noqa: PLC0415  (only jobs with a table need it)

    size = int(arguments.get("size", _core.identity()["size"]))
    strict = knobs["tuning_table_strict"][0] in ("1", "true")
    return lookup.table_rules(path, ranks=size if is_whole and size > 0 else None, strict=strict)


def shutdown() -> None:
    """End this rank's part in the job; pending operations of all ranks fail.

    Does nothing if the daemon does not run in this process, for example in a child of fork().
    """
    _end(lambda runtime: runtime.stop())


def _end(stop: Callable[[Runtime], bool | None]) -> None:
    """End the session. ``stop`` returns True if pending operations go on until the process has ended."""
    if state.session is None:  # also while another thread starts a session: do not wait for the lock then
        return
    with state.lock:
        session = state.session
        if session is None:
            return
        state.session = None
        launcher_environment.forget_rank_process()
        if isinstance(sys.exc_info()[1], HorocacheError):  # called in a finally or except clause, for that error
            session.runtime.log_record_path()
        running = True
        try:
            if session.tuner is not None:
                session.tuner.stop()
            running = bool(stop(session.runtime))
        finally:
            for follower in state.followers:
                follower.ended(running)
            session.end()
