"""allreduce of 4 ranks on 2 hosts with a slow link between them: in two levels, flat, and as programs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from benchmarks.arrays import Sum, compare
from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.network import SlowLink
from benchmarks.peers import Rank

TITLE = "allreduce of 2 x 2 ranks"
_SIZES = [4, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24]
# One gigabit per second, and a packet's delay in a few switches.
LINK = SlowLink(delay_s=250e-6, bytes_per_s=125e6)


def jobs(quick: bool) -> list[Job]:
    """One job; each host is a network namespace."""
    sizes = _SIZES[3:4] if quick else _SIZES
    parameters = {"sizes": sizes, "budget_s": 1.5 if quick else 6.0}
    return [Job("hosts", 4, parameters, needs_mpi=True, link=LINK)]


def measure(rank: Rank, sizes: list[int], budget_s: float) -> list[Series]:
    """Measure every size, with all ways alternated."""
    return compare(rank, _runs(rank), sizes, "ms", 20, budget_s)


def _runs(rank: Rank) -> dict[str, Sum]:
    from mpi4py import MPI

    found: dict[str, Sum] = {}
    if rank.has("horocache"):
        hc = rank.horocache_as_launched(programs=str(_programs(rank)))
        ways = {
            "horocache, two levels": "mpi/twolevel",
            "flat, native": "mpi/native",
            "flat, fold": "mpi/fold",
            "program, hierarchical": "program/hierarchical",
            "program, ring": "program/ring",
        }
        found |= {name: functools.partial(_sum, hc, backend) for name, backend in ways.items()}
    if rank.has("mpi4py"):
        found["mpi4py"] = lambda array: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
    return found


def _programs(rank: Rank) -> Path:
    from horocache.lang import algorithms, compile_program, save_program

    folder = rank.directory / "hosts-programs"
    if rank.rank == 0:
        folder.mkdir()
        for program in (algorithms.hierarchical(2, 2), algorithms.ring(4)):
            save_program(compile_program(program), folder / f"{program.name}.program.json")
    rank.page.barrier()
    return folder


def _sum(hc: Any, backend: str, array: Any) -> None:
    hc.allreduce_(array, op=hc.Sum, name=f"{backend} {len(array)}", backend=backend)
