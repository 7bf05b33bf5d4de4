"""What is understood of MPI communicators: which ranks of the job they hold.

Nothing here imports MPI. A communicator is whatever has mpi4py's methods, so a program that does not use MPI pays
nothing.
"""

from __future__ import annotations

import sys
from typing import Any

from horocache.errors import InvalidArgumentError


def is_communicator(value: Any) -> bool:
    """Whether ``value`` has the methods of an mpi4py communicator."""
    has_group = hasattr(value, "Get_group") or hasattr(value, "group")
    return has_group and hasattr(value, "Get_rank") and hasattr(value, "Get_size")


def job_communicator() -> Any:
    """The communicator whose ranks are those of the job: mpi4py's ``COMM_WORLD``.

    Raises:
        InvalidArgumentError: mpi4py is not loaded.
    """
    loaded = sys.modules.get("mpi4py.MPI")
    if loaded is None:
        raise InvalidArgumentError(
            "a communicator was given, but mpi4py.MPI is not loaded, so its ranks cannot be looked up; give a list of "
            "ranks instead."
        )
    return loaded.COMM_WORLD


def ranks_of_communicator(comm: Any, job: Any = None) -> list[int]:
    """The ranks of ``comm`` as ranks of the job, in the order of ``comm``.

    Args:
        comm: an mpi4py communicator, or whatever has its ``Get_rank``, ``Get_size`` and ``Get_group`` (or ``group``).
        job: the communicator whose ranks are those of the job; :func:`job_communicator` when omitted.

    Raises:
        InvalidArgumentError: ``comm`` is the null communicator, or holds processes that are not in the job.
    """
    if not comm:  # mpi4py's COMM_NULL: what a process gets that is not in the communicator
        raise InvalidArgumentError(
            f"{comm!r} is no communicator on this rank. Every rank has to name every process set: give a list of ranks "
            "where this rank is not a member."
        )
    group = _group(comm)
    # By the class: a class method in mpi4py 3, a method of the first group in mpi4py 4.
    ranks = type(group).Translate_ranks(group, list(range(comm.Get_size())), _group(job or job_communicator()))
    outside = [position for position, rank in enumerate(ranks) if rank < 0]  # MPI.UNDEFINED
    if outside:
        raise InvalidArgumentError(
            f"the communicator has processes that are not in the job: its own ranks {outside} of {comm.Get_size()}."
        )
    return [int(rank) for rank in ranks]


def _group(comm: Any) -> Any:
    return comm.Get_group() if hasattr(comm, "Get_group") else comm.group
