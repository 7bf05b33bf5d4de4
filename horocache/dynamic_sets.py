"""Process sets that are added and removed while the job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from horocache import _state
from horocache._session import Session
from horocache.errors import HorocacheError, InvalidArgumentError, StartupError
from horocache.numpy_binding import collectives
from horocache.objects import allgather_object
from horocache.ops import Max, synchronize
from horocache.process_set import ProcessSet, global_process_set


def add_process_set(process_set: ProcessSet | Iterable[int] | Any) -> ProcessSet:
    """Register a set of ranks while the job runs.

    To be called by all ranks of the job, members or not, with the same ranks and in the same order of calls; the
    threads of a rank add and remove sets one after the other. Operations that run meanwhile, on other sets and from
    other threads, go on. ``docs/explanation/process_sets.md`` tells how.

    Args:
        process_set: the ranks: a set that is not registered, a list of global ranks, or an mpi4py communicator.

    Returns:
        The set, registered; the one that was given if it was a :class:`ProcessSet`.

    Raises:
        InvalidArgumentError: it is registered already, or another set has these ranks; there are none, or some that the
            job does not have. MismatchError: the ranks name different sets; nothing has changed, and the job goes on.
            StartupError: a member could not join it, on all ranks; nothing has changed. UnsupportedError: a rank has
            joined (:func:`~horocache.join`), or MPI may be used by one thread at a time only.
    """
    session = _state.current()
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    with session.sets_lock:
        if made.process_set_id is not None:
            raise InvalidArgumentError(f"{made!r} is registered already.")
        made.count_in(session.job)
        number = _agreed_number(session)
        agreed = session.runtime.propose_set(number, made.ranks)
        try:
            session.runtime.wait(agreed)
            _together(number, made, session.runtime.meet_set)
            _together(number, made, session.runtime.enter_set)
        except BaseException:
            session.runtime.drop_set(number)
            raise
        session.register(number, made)
    return made


def _agreed_number(session: Session) -> int:
    """The greatest of the ranks' next numbers: an interrupt may have made one of them count differently."""
    if session.next_number is None:
        mine = np.array([session.runtime.next_set()])
        session.next_number = mine, collectives.allreduce_async_(mine, name="process_set.next_number", op=Max)
    numbers, handle = session.next_number
    try:
        synchronize(handle)  # an interrupt leaves it to the next call
    except HorocacheError:
        session.next_number = None
        raise
    session.next_number = None
    return int(numbers[0])


def _together(number: int, made: ProcessSet, step: Callable[[int], None]) -> None:
    """Take a step of adding a set on all ranks.

    Raises:
        StartupError: it went wrong on some rank.
    """
    failure: BaseException | None = None
    try:
        step(number)
    except BaseException as error:
        failure = error
    # Before anything is raised: the others wait for the outcome.
    told = None if failure is None else f"{type(failure).__name__}: {failure}"
    outcomes = allgather_object(told, name="process_set.outcome")
    if failure is not None and not isinstance(failure, HorocacheError):
        raise failure
    # All of them: of the ranks that failed, most may only know that another one did.
    ranks_of: dict[str, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        if outcome is not None:
            ranks_of.setdefault(outcome, []).append(rank)
    if ranks_of:
        why = "; ".join(f"on {_named(ranks)}: {outcome}" for outcome, ranks in ranks_of.items())
        raise StartupError(f"process set {number} ({made.ranks}) was not added: {why}")


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def remove_process_set(process_set: ProcessSet) -> bool:
    """Take a set out of use while the job runs, and free what it holds.

    To be called by all ranks of the job, members or not, in the same order of calls. What is pending on the set on some
    members, and not submitted on others, fails with ShutDownError.

    Args:
        process_set: a registered set.

    Returns:
        True; the object can be added again. False for the global set, which stays, and for a set that is not
        registered.

    Raises:
        StallError: the ranks do not all remove this set, and it stays; or a member did not leave it within
            ``stall_shutdown_time_seconds``, and it is gone. UnsupportedError: a rank has joined, or MPI may be used by
            one thread at a time only; it stays. InvalidArgumentError: it is no process set.
    """
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(f"a process set can be removed, not {process_set!r}.")
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    session = _state.current()
    with session.sets_lock:
        number = process_set.process_set_id
        if number is None:  # another thread has removed it
            return False
        session.runtime.wait(session.runtime.propose_removal(number))
        try:
            session.runtime.leave_set(number)
        finally:
            session.forget(number)
    return True
