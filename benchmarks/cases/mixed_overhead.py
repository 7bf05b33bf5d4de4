"""The cost of ``horocache.mcr_dl``: against the daemon's own call, and against the library itself, in OSU-like loops.

A block is a loop of blocking calls of one size, as in the OSU micro-benchmarks; its mean counts. The contestants of a
size take turns block by block. They use the same backend: MPI by mpi4py is the library below the backend ``mpi``, and
torch.distributed that of ``gloo``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.figures import Series
from benchmarks.peers import Rank, mixed
from benchmarks.report import size_label
from benchmarks.timing import Contestant, alternate, check

OURS, DAEMON = "horocache.mcr_dl", "daemon's own call"
RAW = {"mpi": "mpi4py", "gloo": "torch.distributed"}
_BLOCKS = 40
_FEWEST_BLOCKS = 30
_MOST_CALLS = 200  # of a block
_PERIOD = 1021  # of the values, which stay exact in float32

Run = Callable[[], object]


@dataclass
class Buffers:
    """The tensors of one size: an allreduce works in place of ``data``, an alltoall from ``data`` to ``result``.

    The daemon's own alltoall returns a new tensor, which replaces ``result``.
    """

    data: Any
    result: Any


def measure(
    rank: Rank, sizes: list[int], ops: list[str], backends: list[str], block_s: float, budget_s: float
) -> list[Series]:
    """Measure every operation, backend and size.

    Args:
        rank: this rank.
        sizes: bytes of a rank's tensor.
        ops: of allreduce and alltoall.
        backends: those to measure, if the job has them.
        block_s: about the duration of a block, from which the number of its calls follows.
        budget_s: for the blocks of one operation, backend and size; thirty are measured in any case.
    """
    mcr_dl = mixed(rank)
    series = []
    for backend in (name for name in mcr_dl.get_backends() if name in backends):
        for op in ops:
            for size in sizes:
                series += _size(rank, mcr_dl, op, backend, size, block_s, budget_s)
    return series


def _size(rank: Rank, mcr_dl: Any, op: str, backend: str, size: int, block_s: float, budget_s: float) -> list[Series]:
    import numpy as np

    count = -(-size // 4 // rank.size) * rank.size
    buffers = Buffers(np.empty(count, np.float32), np.zeros(count, np.float32))
    runs = _runs(rank, mcr_dl, op, backend, buffers)
    contestants = [_contestant(rank, name, op, run, buffers) for name, run in runs.items()]
    wrong = check(rank.page, contestants)
    calls = _calls_of_block(rank, contestants[0], block_s)
    contestants = [replace(contestant, inner=calls) for contestant in contestants]
    times = alternate(
        rank.page, contestants, repetitions=_BLOCKS, budget_s=budget_s, warm_up=3, at_least=_FEWEST_BLOCKS
    )
    detail = {"op": op, "backend": backend, "bytes": count * 4, "calls_per_block": calls}
    return [
        Series(
            f"{op}, {backend}, {size_label(size)}",
            name,
            "us",
            one.seconds,
            cpu_seconds=one.cpu_seconds,
            detail={**detail, "wrong": wrong[name]},
        )
        for name, one in times.items()
    ]


def _calls_of_block(rank: Rank, contestant: Contestant, block_s: float) -> int:
    """Return the number of calls that take about ``block_s``, the same on all ranks."""
    trial = alternate(rank.page, [contestant], repetitions=3, budget_s=float("inf"))
    seconds = statistics.median(trial[contestant.name].seconds)
    return rank.page.agree(max(1, min(_MOST_CALLS, int(block_s / seconds))))


def _runs(rank: Rank, mcr_dl: Any, op: str, backend: str, buffers: Buffers) -> dict[str, Run]:
    import horocache as hc

    data, result, name = buffers.data, buffers.result, f"overhead {op} {backend} {buffers.data.nbytes}"
    if op == "allreduce":
        found: dict[str, Run] = {
            OURS: lambda: mcr_dl.all_reduce(backend, data),
            DAEMON: lambda: hc.allreduce_(data, op=hc.Sum, name=name, backend=backend),
        }
    else:

        def daemon() -> None:
            buffers.result = hc.alltoall(data, name=name, backend=backend)

        found = {OURS: lambda: mcr_dl.all_to_all_single(backend, result, data), DAEMON: daemon}
    if backend == "mpi" and rank.has("mpi4py"):
        found[RAW["mpi"]] = _mpi(op, buffers)
    if backend == "gloo" and rank.has("gloo"):
        found[RAW["gloo"]] = _gloo(rank, op, buffers)
    return found


def _mpi(op: str, buffers: Buffers) -> Run:
    from mpi4py import MPI

    world, data, result = MPI.COMM_WORLD, buffers.data, buffers.result
    if op == "allreduce":
        return lambda: world.Allreduce(MPI.IN_PLACE, data)
    return lambda: world.Alltoall(data, result)


def _gloo(rank: Rank, op: str, buffers: Buffers) -> Run:
    import torch

    dist = rank.gloo()
    data, result = torch.from_numpy(buffers.data), torch.from_numpy(buffers.result)
    if op == "allreduce":
        return lambda: dist.all_reduce(data)
    return lambda: dist.all_to_all_single(result, data)


def _contestant(rank: Rank, name: str, op: str, run: Run, buffers: Buffers) -> Contestant:
    import numpy as np

    count = buffers.data.size
    pattern = (np.arange(count) % _PERIOD).astype(np.float32)
    own, share = buffers.result, count // rank.size

    def prepare() -> None:
        np.add(pattern, rank.rank, out=buffers.data)
        own.fill(-1)
        buffers.result = own

    def wrong() -> int:
        if op == "allreduce":
            return int((buffers.data != pattern * rank.size + rank.size * (rank.size - 1) // 2).sum())
        mine = pattern[rank.rank * share : (rank.rank + 1) * share]
        return sum(
            int((buffers.result[other * share : (other + 1) * share] != mine + other).sum())
            for other in range(rank.size)
        )

    return Contestant(name, run, prepare, wrong=wrong)
