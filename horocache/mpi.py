"""What is understood of MPI communicators: the job that one stands for, and which ranks of the job they hold.

Nothing here imports MPI. A communicator is whatever has mpi4py's methods, so a program that does not use MPI pays
nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from horocache.errors import InvalidArgumentError, UnsupportedError


@dataclass(frozen=True)
class Job:
    """What ``init(comm=...)`` says the job is; by default all processes that the launcher started.

    Role: a value, for the length of a session.
    """

    communicator: Any = None
    handle: int = 0  # of the communicator
    ranks: list[int] = field(default_factory=list)  # of the processes that the launcher started; empty: all


def job_of(comm: Any) -> Job:
    """The job that ``init(comm=...)`` asks for.

    Raises:
        InvalidArgumentError: it is neither a communicator nor a list of ranks, or a null or an inter-communicator.
    """
    if comm is None:
        return Job()
    if is_communicator(comm):
        _refuse_two_groups(comm)
        if not comm:
            raise InvalidArgumentError(
                f"init(comm={comm!r}): this process is not in the communicator; call init() on its members alone."
            )
        return Job(comm, _handle_of(comm))
    if not isinstance(comm, Sequence) or isinstance(comm, (str, bytes)):
        raise InvalidArgumentError(f"init() takes a list of ranks or an mpi4py communicator as comm, not {comm!r}.")
    if not all(isinstance(rank, Integral) for rank in comm):
        raise InvalidArgumentError(f"init(comm={list(comm)}): ranks are whole numbers.")
    return Job(ranks=[int(rank) for rank in comm])


def _refuse_two_groups(comm: Any) -> None:
    if comm and getattr(comm, "Is_inter", lambda: False)():
        raise InvalidArgumentError(
            f"{comm!r} is an intercommunicator, whose two groups have ranks of their own; give one that has a single "
            "group, such as comm.Merge()."
        )


def _handle_of(comm: Any) -> int:
    """The ``MPI_Comm`` as a number."""
    module = sys.modules.get("mpi4py.MPI")
    handle_of = getattr(module, "_handleof", None)
    if handle_of is None:
        raise UnsupportedError("init(comm=...) takes communicators of mpi4py 4 or newer.")
    return int(handle_of(comm))


def is_communicator(value: Any) -> bool:
    """Whether ``value`` has the methods of an mpi4py communicator."""
    has_group = hasattr(value, "Get_group") or hasattr(value, "group")
    return has_group and hasattr(value, "Get_rank") and hasattr(value, "Get_size")


def _group_of_job(job: Job) -> Any:
    """The group whose ranks are those of the job, by default of mpi4py's ``COMM_WORLD``.

    Raises:
        InvalidArgumentError: mpi4py is not loaded.
    """
    if job.communicator is not None:
        return _group(job.communicator)
    loaded = sys.modules.get("mpi4py.MPI")
    if loaded is None:
        raise InvalidArgumentError(
            "a communicator was given, but mpi4py.MPI is not loaded, so its ranks cannot be looked up; give a list of "
            "ranks instead."
        )
    world = _group(loaded.COMM_WORLD)
    return world.Incl(job.ranks) if job.ranks else world


def ranks_of_communicator(comm: Any, job: Job | None = None) -> list[int]:
    """The ranks of ``comm`` as ranks of the job, in the order of ``comm``.

    Args:
        comm: an mpi4py communicator, or whatever has its ``Get_rank``, ``Get_size`` and ``Get_group`` (or ``group``).
        job: what the ranks are counted in; all processes that the launcher started when omitted.

    Raises:
        InvalidArgumentError: ``comm`` is the null communicator, or holds processes that are not in the job.
    """
    if not comm:  # mpi4py's COMM_NULL: what a process gets that is not in the communicator
        raise InvalidArgumentError(
            f"{comm!r} is no communicator on this rank. Every rank has to name every process set: give a list of ranks "
            "where this rank is not a member."
        )
    _refuse_two_groups(comm)
    group = _group(comm)
    # By the class: a class method in mpi4py 3, a method of the first group in mpi4py 4.
    ranks = type(group).Translate_ranks(group, list(range(comm.Get_size())), _group_of_job(job or Job()))
    outside = [position for position, rank in enumerate(ranks) if rank < 0]  # MPI.UNDEFINED
    if outside:
        raise InvalidArgumentError(
            f"the communicator has processes that are not in the job: its own ranks {outside} of {comm.Get_size()}."
        )
    return [int(rank) for rank in ranks]


def _group(comm: Any) -> Any:
    return comm.Get_group() if hasattr(comm, "Get_group") else comm.group
