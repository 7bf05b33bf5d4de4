"""broadcast, allgather and alltoall of 4 ranks on 2 hosts with a slow link between them, as the selector chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.arrays import race
from benchmarks.cases.hosts import LINK
from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.report import size_label
from benchmarks.timing import Contestant

TITLE = "broadcast, allgather and alltoall of 2 x 2 ranks"
_SIZES = [1 << 16, 1 << 20, 1 << 22, 1 << 24]

# Takes an array as long as the result, and a second one; returns the result, in one of these arrays or a new one.
Move = Callable[[Any, Any], Any]


def jobs(quick: bool) -> list[Job]:
    """One job; each host is a network namespace."""
    sizes = _SIZES[1:2] if quick else _SIZES
    parameters = {"sizes": sizes, "budget_s": 1.0 if quick else 4.0}
    return [Job("moves", 4, parameters, needs_mpi=True, link=LINK)]


def measure(rank: Rank, sizes: list[int], budget_s: float) -> list[Series]:
    """Measure every operation and size, alternated; the size is that of one rank's result."""
    ours = _of_horocache(rank) if rank.has("horocache") else {}
    theirs = _of_mpi() if rank.has("mpi4py") else {}
    series = []
    for operation in ("broadcast", "allgather", "alltoall"):
        for size in sizes:
            moves = {"horocache": ours.get(operation), "mpi4py": theirs.get(operation)}
            contestants = [
                _contestant(name, operation, move, rank, size) for name, move in moves.items() if move is not None
            ]
            series += race(rank, f"{operation} {size_label(size)}", size, contestants, "ms", 20, budget_s)
    return series


def _contestant(name: str, operation: str, move: Move, rank: Rank, size: int) -> Contestant:
    import numpy as np

    count = size // 4
    part = count // rank.size
    given = np.arange(count, dtype=np.float32) + rank.rank * 0.25
    into = np.empty_like(given)
    expected = np.concatenate([_sent(operation, root, rank.rank, part) for root in range(rank.size)])
    results: list[Any] = []

    def run() -> None:
        results[:] = [move(given, into)]

    def wrong() -> int:
        return int((results[0] != expected).sum())

    return Contestant(name, run, inner=5 if size < 1 << 20 else 1, wrong=wrong)


def _sent(operation: str, source: int, rank: int, part: int) -> Any:
    """Return the part number ``source`` of ``rank``'s result."""
    import numpy as np

    root, start = {"broadcast": (0, source), "allgather": (source, 0), "alltoall": (source, rank)}[operation]
    return np.arange(start * part, (start + 1) * part, dtype=np.float32) + root * 0.25


def _of_horocache(rank: Rank) -> dict[str, Move]:
    hc = rank.horocache_as_launched()

    def broadcast(given: Any, into: Any) -> Any:
        mine = given if rank.rank == 0 else into
        return hc.broadcast_(mine, root_rank=0, name=f"broadcast {len(given)}")

    def allgather(given: Any, into: Any) -> Any:
        return hc.allgather(given[: len(given) // rank.size], name=f"allgather {len(given)}")

    def alltoall(given: Any, into: Any) -> Any:
        return hc.alltoall(given, name=f"alltoall {len(given)}")

    return {"broadcast": broadcast, "allgather": allgather, "alltoall": alltoall}


def _of_mpi() -> dict[str, Move]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def broadcast(given: Any, into: Any) -> Any:
        mine = given if world.rank == 0 else into
        world.Bcast(mine, root=0)
        return mine

    def allgather(given: Any, into: Any) -> Any:
        world.Allgather(given[: len(given) // world.size], into)
        return into

    def alltoall(given: Any, into: Any) -> Any:
        world.Alltoall(given, into)
        return into

    return {"broadcast": broadcast, "allgather": allgather, "alltoall": alltoall}
