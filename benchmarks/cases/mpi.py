"""allreduce on the mpi backend, compared with MPI_Allreduce of the same MPI library."""

from __future__ import annotations

from benchmarks.arrays import Sum, compare
from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank

TITLE = "allreduce on the mpi backend, blocking and in place"
_SIZES = [4, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26]


def jobs(quick: bool) -> list[Job]:
    """2 and 4 ranks, for any number of cores."""
    sizes = _SIZES[::4] if quick else _SIZES
    budget_s = 1.0 if quick else 4.0
    return [Job("mpi", ranks, {"sizes": sizes, "budget_s": budget_s}, needs_mpi=True) for ranks in (2, 4)]


def measure(rank: Rank, sizes: list[int], budget_s: float) -> list[Series]:
    """Measure every size, alternated."""
    return compare(rank, _runs(rank), sizes, "us", 60, budget_s)


def _runs(rank: Rank) -> dict[str, Sum]:
    from mpi4py import MPI

    found: dict[str, Sum] = {}
    if rank.has("horocache"):
        hc = rank.horocache_as_launched()
        found["horocache"] = lambda array: hc.allreduce_(array, op=hc.Sum, name=f"mpi {len(array)}", backend="mpi")
    if rank.has("mpi4py"):
        found["mpi4py"] = lambda array: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
    return found
