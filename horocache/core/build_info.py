"""What this build and this job can use: MPI, NCCL and the rest of Horovod's questions."""

from __future__ import annotations

from horocache.core.context import known, state
from horocache.errors import InvalidArgumentError


def mpi_threads_supported() -> bool:
    """Whether this program may use MPI from several threads while horocache does.

    Raises:
        InvalidArgumentError: the job does not use MPI (Horovod raises ValueError here as well).
    """
    level = known().runtime.mpi
    if level == 0:
        raise InvalidArgumentError("this job does not use MPI; mpi_enabled() tells.")
    return level > 1


def mpi_enabled() -> bool:
    """Whether the ranks of the running job are connected over MPI, too; False where none runs."""
    session = state.session or state.inherited
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
