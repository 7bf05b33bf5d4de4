"""Queries for the libraries that this build and this job can use, such as MPI and NCCL; the same as Horovod's."""

from __future__ import annotations

from horocache.core.context import known, state
from horocache.errors import InvalidArgumentError


def mpi_threads_supported() -> bool:
    """True if this program may call MPI from several threads while horocache does.

    Raises:
        InvalidArgumentError: the job does not use MPI (Horovod raises ValueError here as well).
    """
    level = known().runtime.mpi
    if level == 0:
        raise InvalidArgumentError("MPI is not active in this job; see mpi_enabled().")
    return level > 1


def mpi_enabled() -> bool:
    """True if the ranks of the running job are also connected over MPI; False if no job runs."""
    session = state.session or state.inherited
    return session is not None and session.runtime.mpi > 0


def mpi_built() -> bool:
    """Always True: MPI needs no support at build time, as its library is looked for when a job starts."""
    return True


def gloo_enabled() -> bool:
    """Always False: horocache has its own channels instead of gloo."""
    return False


def gloo_built() -> bool:
    """Always False: horocache does not include gloo."""
    return False


def nccl_built() -> int:
    """Version code of the NCCL that the running job uses for CUDA tensors (22809 for 2.28.9).

    It is 0 if the job uses none, and before ``init``: NCCL needs no support at build time, as its library is looked for
    when a job starts.
    """
    session = state.session or state.inherited
    return 0 if session is None else session.runtime.nccl


def ddl_built() -> bool:
    """Always False: horocache does not include IBM's DDL."""
    return False


def ccl_built() -> bool:
    """Always False: horocache does not include Intel's oneCCL."""
    return False


def cuda_built() -> bool:
    """Always False: no library of the package links CUDA. The driver is loaded when the first CUDA tensor comes."""
    return False


def rocm_built() -> bool:
    """Always False: horocache has no ROCm backend."""
    return False
