"""Process sets that are added and removed while the job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from horocache.collectives.api import Max, synchronize
from horocache.collectives.numpy import collectives
from horocache.collectives.object_collectives import allgather_object
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set, parts_at_one_place
from horocache.core.session import Session
from horocache.core.store_bootstrap import Share
from horocache.errors import HorocacheError, InvalidArgumentError, NotInitializedError, ShutDownError, StartupError


def add_process_set(process_set: ProcessSet | Iterable[int] | Any) -> ProcessSet:
    """Register a process set while the job runs.

    All ranks of the job, members or not, must call it with the same ranks and in the same order of calls. The threads
    of a rank add and remove sets one after the other. Operations on other sets and from other threads go on meanwhile.
    ``docs/explanation/process_sets.md`` explains more.

    Args:
        process_set: a :class:`ProcessSet` that is not registered, a list of global ranks, or an mpi4py communicator. If
            each rank gives the communicator that it got from ``Split``, every part is registered on all ranks.

    Returns:
        The registered set, which is ``process_set`` itself if that is a :class:`ProcessSet`.

    Raises:
        InvalidArgumentError: the set is registered already, another set has the same ranks, the set is empty, or it has
            ranks that the job does not have. MismatchError: the ranks name different sets; nothing has changed, and the
            job goes on. StartupError: a member could not join the set; all ranks raise it, and nothing has changed.
            UnsupportedError: a rank has joined (:func:`~horocache.join`), or MPI may be used by one thread at a time
            only.
    """
    session = context.current()
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    with session.sets_lock:
        if made.process_set_id is not None:
            raise InvalidArgumentError(f"{made!r} is registered already.")
        made.count_in(session.job)
        number, has_parts = _agreed_number(session, made.mpi_comm is not None)
        parts = parts_at_one_place(allgather_object(made.ranks, name="process_set.parts")) if has_parts else None
        if parts is None:  # if the ranks name different sets, the proposal fails on all of them
            parts = [made.ranks]
        added: list[int] = []
        try:
            for each in made.part_of(parts):
                if added:
                    number, _ = _agreed_number(session, False)
                _add(session, number, each)
                added.append(number)
        except HorocacheError:
            for number in added:
                _remove(session, number)
            raise
    return made


def _add(session: Session, number: int, made: ProcessSet) -> None:
    agreed = session.runtime.propose_set(number, made.ranks)
    try:
        session.runtime.wait(agreed)
        _together(number, made, session.runtime.connect_set, _gather_outcomes, range(session.runtime.size))
        _together(number, made, session.runtime.open_set, _gather_outcomes, range(session.runtime.size))
    except BaseException:
        session.runtime.drop_set(number)
        raise
    session.register(number, made)


def _agreed_number(session: Session, may_be_a_part: bool) -> tuple[int, bool]:
    """Return the number of the next set, and True if any rank's set may be one part of several that the ranks add.

    The number is the greatest of the ranks' next numbers, which may differ after an interrupt.
    """
    if session.next_number is None:
        mine = np.array([session.runtime.next_set(), may_be_a_part])
        session.next_number = mine, collectives.allreduce_async_(mine, name="process_set.next_number", op=Max)
    numbers, handle = session.next_number
    try:
        synchronize(handle)  # after an interrupt, the next call goes on with this agreement
    except HorocacheError:
        session.next_number = None
        raise
    session.next_number = None
    return int(numbers[0]), bool(numbers[1])


def _gather_outcomes(outcome: str) -> list[str]:
    outcomes: list[str] = allgather_object(outcome, name="process_set.outcome")
    return outcomes


def _together(number: int, made: ProcessSet, step: Callable[[int], None], share: Share, ranks: Sequence[int]) -> None:
    """Take one step of adding a set, on all of ``ranks``.

    Raises:
        StartupError: the step failed on a rank.
    """
    failure: BaseException | None = None
    try:
        step(number)
    except BaseException as error:
        failure = error
    # Before an error is raised, because the other ranks wait for the outcome.
    outcomes = share("" if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None and not isinstance(failure, HorocacheError):
        raise failure
    # The message has the errors of all ranks: most of them may only say that another rank has failed.
    ranks_of: dict[str, list[int]] = {}
    for rank, outcome in zip(ranks, outcomes, strict=True):
        if outcome:
            ranks_of.setdefault(outcome, []).append(rank)
    if ranks_of:
        why = "; ".join(f"on {_named(failed)}: {outcome}" for outcome, failed in ranks_of.items())
        raise StartupError(f"process set {number} ({made.ranks}) was not added: {why}")


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def add_set_of_members(ranks: Sequence[int], share: Share, take_number: Callable[[int], int]) -> ProcessSet:
    """Register a process set that its members make among themselves; the other ranks need not know of it.

    All members must call it. Another set may have the same ranks. The numbers are those of :func:`add_process_set`,
    which takes a number that no rank has seen. So the number that is taken here is not less than any member's next
    number, and no member can add another set meanwhile.

    Args:
        ranks: global ranks, in any order.
        share: exchanges texts among the members, in the order of ``ranks``.
        take_number: called on the first of ``ranks`` with the lowest allowed number; returns that number or a higher
            one, which no other call, on any rank of the job, has returned or will return.

    Returns:
        The registered set.

    Raises:
        StartupError: a member could not join the set; all members raise it, and nothing has changed.
            NotInitializedError, InvalidArgumentError, UnsupportedError: as for :func:`add_process_set`.
    """
    session = context.current()
    made = ProcessSet(ranks)
    declared = False

    def declare(number: int) -> None:
        nonlocal declared
        session.runtime.declare_set(number, made.ranks)
        declared = True

    with session.sets_lock:
        least = max(int(text) for text in share(str(session.runtime.next_set())))
        is_first = session.runtime.rank == ranks[0]
        number = int(share(str(take_number(least)) if is_first else "")[0])
        try:
            for step in (declare, session.runtime.connect_set, session.runtime.open_set):
                _together(number, made, step, share, ranks)
        except BaseException:
            if declared:
                session.runtime.drop_set(number)
            raise
        session.register(number, made)
    return made


def leave_set_of_members(process_set: ProcessSet) -> None:
    """Remove a process set that its members have made among themselves.

    Each member must call it at some time. Operations that are then pending fail with ShutDownError, and so do later
    operations of the other members. Returns when all members have left the set, or when the job has ended.

    Raises:
        StallError: a member did not leave the set within ``stall_shutdown_time_seconds``; the set is removed anyway.
    """
    try:
        session = context.current()
        with session.sets_lock:
            number = process_set.process_set_id
            if number is None:
                return
            session.forget(number)
        session.runtime.leave_set(number)
    except (NotInitializedError, ShutDownError):  # the job has ended, with the set
        return


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set while the job runs, and free its memory.

    All ranks of the job, members or not, must call it in the same order of calls. Operations of the set that are
    pending on some members only fail with ShutDownError.

    Args:
        process_set: a registered set.

    Returns:
        True if the set was removed; the object can be added again. False for the global set, which stays, and for a set
        that is not registered.

    Raises:
        StallError: not all ranks remove this set, which stays; or a member did not leave the set within
            ``stall_shutdown_time_seconds``, and it is removed. UnsupportedError: a rank has joined, or MPI may be used
            by one thread at a time only; the set stays. InvalidArgumentError: ``process_set`` is not a process set.
    """
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(f"a process set can be removed, not {process_set!r}.")
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    session = context.current()
    with session.sets_lock:
        number = process_set.process_set_id
        if number is None:  # another thread has removed it
            return False
        _remove(session, number)
    return True


def _remove(session: Session, number: int) -> None:
    session.runtime.wait(session.runtime.propose_removal(number))
    try:
        session.runtime.leave_set(number)
    finally:
        session.forget(number)
