"""MPI communicators: the job that a communicator stands for, and the ranks of the job that it contains.

This module does not import MPI. It takes any object with mpi4py's methods for a communicator, so a program that does
not use MPI pays nothing.
"""

from __future__ import annotations

import array
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from horocache.errors import InvalidArgumentError, StartupError, UnsupportedError


@dataclass(frozen=True)
class Job:
    """The job as ``init(comm=...)`` defines it; by default all processes that the launcher started.

    Role: a value, constant for the length of a session.
    """

    communicator: Any = None
    handle: int = 0  # the communicator's MPI_Comm as a number; 0: none
    ranks: list[int] = field(default_factory=list)  # the job's processes, by their launcher's ranks; empty: all


def job_of(comm: Any) -> Job:
    """Return the job that ``init(comm=...)`` asks for.

    Raises:
        InvalidArgumentError: ``comm`` is neither a communicator nor a list of ranks, or it is a null communicator or an
            intercommunicator.
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
    """Return the communicator's ``MPI_Comm`` as a number."""
    module = sys.modules.get("mpi4py.MPI")
    handle_of = getattr(module, "_handleof", None)
    if handle_of is None:
        raise UnsupportedError("init(comm=...) takes communicators of mpi4py 4 or newer.")
    return int(handle_of(comm))


def is_communicator(value: Any) -> bool:
    """True if ``value`` has the methods of an mpi4py communicator."""
    has_group = hasattr(value, "Get_group") or hasattr(value, "group")
    return has_group and hasattr(value, "Get_rank") and hasattr(value, "Get_size")


def _group_of_job(job: Job) -> Any:
    """Return the MPI group whose ranks are those of the job, by default that of mpi4py's ``COMM_WORLD``.

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
    """Return the ranks of ``comm`` as ranks of the job, in the order of ``comm``.

    Args:
        comm: an mpi4py communicator, or an object with its ``Get_rank``, ``Get_size`` and ``Get_group`` (or ``group``).
        job: the job whose ranks are returned; when omitted, all processes that the launcher started.

    Raises:
        InvalidArgumentError: ``comm`` contains processes that are not in the job.
    """
    _refuse_two_groups(comm)
    group = _group(comm)
    # Called through the class: it is a class method in mpi4py 3, and a method of the first group in mpi4py 4.
    ranks = type(group).Translate_ranks(group, list(range(comm.Get_size())), _group_of_job(job or Job()))
    outside = [position for position, rank in enumerate(ranks) if rank < 0]  # MPI.UNDEFINED
    if outside:
        raise InvalidArgumentError(
            f"the communicator has processes that are not in the job: its own ranks {outside} of {comm.Get_size()}."
        )
    return [int(rank) for rank in ranks]


def _group(comm: Any) -> Any:
    return comm.Get_group() if hasattr(comm, "Get_group") else comm.group


def allgather_lists(job: Job, numbers: Sequence[int], limit_s: float) -> list[list[int]]:
    """Exchange lists of numbers among all ranks of the job, over mpi4py. All ranks must call it.

    Returns:
        Each rank's ``numbers``, by rank. An empty list if mpi4py has not initialised MPI, or if the job is a list of
        ranks or has one rank.

    Raises:
        StartupError: a rank did not come within ``limit_s`` seconds.
    """
    module = sys.modules.get("mpi4py.MPI")
    if module is None or job.ranks or not module.Is_initialized() or module.Is_finalized():
        return []
    comm = module.COMM_WORLD if job.communicator is None else job.communicator
    if comm.Get_size() == 1:
        return []
    deadline = time.monotonic() + limit_s
    own, longest = array.array("i", [len(numbers)]), array.array("i", [0])
    _await(comm.Iallreduce(own, longest, op=module.MAX), deadline, limit_s)
    block = longest[0] + 1
    mine = array.array("i", [len(numbers), *numbers, *([0] * (longest[0] - len(numbers)))])
    everything = array.array("i", [0] * (block * comm.Get_size()))
    _await(comm.Iallgather(mine, everything), deadline, limit_s)
    blocks = [everything[start : start + block] for start in range(0, len(everything), block)]
    return [list(each[1 : 1 + each[0]]) for each in blocks]


def _await(request: Any, deadline: float, limit_s: float) -> None:
    while not request.Test():
        if time.monotonic() >= deadline:
            raise StartupError(
                f"a rank did not send its process sets to the others over MPI within {limit_s:g} seconds "
                "(HOROCACHE_START_TIMEOUT). Every rank must import mpi4py and pass process_sets to init()."
            )
        time.sleep(0.0005)
