"""One allreduce from private buffers, 4 bytes to 256 MiB, in nccl-tests' columns, beside the memory's bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.figures import Figure, Series
from benchmarks.job import Job
from benchmarks.peers import Rank, blocking
from benchmarks.report import Table, number, size_label
from benchmarks.timing import Contestant, alternate, check
from benchmarks.yardstick import NAME as YARDSTICK
from benchmarks.yardstick import Yardstick

TITLE = "One allreduce from private buffers"
IN_PLACE, OUT_OF_PLACE = "in place", "out of place"
_SIZES = [4**k for k in range(1, 15)]  # 4 B to 256 MiB
_YARDSTICK_FROM = 1 << 20  # bytes; smaller sizes are measured without the yard-stick


def jobs(quick: bool) -> list[Job]:
    """All sizes in one job."""
    sizes = _SIZES[::4] if quick else _SIZES
    return [Job("bandwidth", 2, {"sizes": sizes, "budget_s": 0.5 if quick else 2.5}, timeout_s=240.0)]


def measure(rank: Rank, sizes: list[int], budget_s: float) -> list[Series]:
    """Measure every size, in place and out of place; the yard-stick takes turns with the contestants."""
    yardstick = Yardstick(rank, max(sizes))
    series = []
    for size in sizes:
        test = _Buffers(size // 4, rank)
        for place in (IN_PLACE, OUT_OF_PLACE):
            contestants = test.contestants(place)
            wrong = check(rank.page, contestants)
            if size >= _YARDSTICK_FROM:
                contestants.append(yardstick.contestant(size))
            times = alternate(rank.page, contestants, repetitions=30, budget_s=budget_s if size >= 1 << 20 else 1.0)
            for impl, one in times.items():
                detail = {"bytes": size, "dtype": "float32", "redop": "sum", "place": place, "wrong": wrong.get(impl)}
                case = f"{size_label(size)} {place}"
                series.append(Series(case, impl, "GB/s", one.seconds, float(size), one.cpu_seconds, detail=detail))
    return series


class _Buffers:
    """A tensor of ``count`` elements whose sums over the ranks are known and vary along the tensor."""

    def __init__(self, count: int, rank: Rank) -> None:
        import torch

        self.torch, self.rank = torch, rank
        base = torch.arange(count, dtype=torch.float32).remainder_(1021.0)
        self.pattern = base + float(rank.rank)
        self.expected = base.mul_(rank.size).add_(rank.size * (rank.size - 1) / 2)
        self.tensor = torch.empty_like(self.pattern)
        self.result = self.tensor

    def contestants(self, place: str) -> list[Contestant]:
        """Return one contestant per implementation."""
        runs = self._in_place() if place == IN_PLACE else self._out_of_place()
        inner = 20 if self.tensor.numel() < 1 << 14 else 4 if self.tensor.numel() < 1 << 18 else 1
        return [Contestant(name, run, self._prepare, inner, self._wrong) for name, run in runs.items()]

    def _prepare(self) -> None:
        # Writes the values anew, as a backward pass does: they are in this core's cache as far as they fit.
        self.tensor.copy_(self.pattern)
        self.result = self.tensor

    def _wrong(self) -> int:
        return int((self.result != self.expected).sum())

    def _in_place(self) -> dict[str, Callable[[], None]]:
        def bind(run: Callable[[Any], None]) -> Callable[[], None]:
            return lambda: run(self.tensor)

        return {name: bind(run) for name, run in blocking(self.rank, f"in place {self.tensor.numel()}").items()}

    def _out_of_place(self) -> dict[str, Callable[[], None]]:
        """The result is a new tensor, as horocache's ``allreduce`` returns it; for the peers, torch allocates it."""
        runs: dict[str, Callable[[], None]] = {}
        if self.rank.has("horocache"):
            hvd = self.rank.horocache()
            name = f"out of place {self.tensor.numel()}"

            def horocache() -> None:
                self.result = hvd.allreduce(self.tensor, name=name, op=hvd.Sum)

            runs["horocache"] = horocache
        if self.rank.has("gloo"):
            dist = self.rank.gloo()

            def gloo() -> None:
                self.result = self.tensor.clone()
                dist.all_reduce(self.result)

            runs["gloo"] = gloo
        if self.rank.has("mpi4py"):
            from mpi4py import MPI

            def mpi() -> None:
                self.result = self.torch.empty_like(self.tensor)
                MPI.COMM_WORLD.Allreduce(self.tensor.numpy(), self.result.numpy())

            runs["mpi4py"] = mpi
        return runs


def tables(figures: Sequence[Figure]) -> list[Table]:
    """One row per size and implementation, as nccl-tests prints them, and the ratios of both places."""
    peers = list(dict.fromkeys(figure.impl for figure in figures if figure.impl != "horocache"))
    columns = ["size", "implementation", "count", "type", "redop"]
    for place in (OUT_OF_PLACE, IN_PLACE):
        columns += [f"{place}: time us", "algbw", "busbw", "#wrong", *(f"x {peer}" for peer in peers)]
    rows: dict[tuple[int, str], list[str]] = {}
    by_place = {(f.detail["bytes"], f.impl, f.detail["place"]): f for f in figures}
    for size, impl in dict.fromkeys((figure.detail["bytes"], figure.impl) for figure in figures):
        row = [f"{size:,}", impl, f"{size // 4:,}", "float", "sum" if impl != YARDSTICK else "copy"]
        for place in (OUT_OF_PLACE, IN_PLACE):
            row += _cells(by_place[size, impl, place], peers)
        rows[size, impl] = row
    note = (
        "Sizes in bytes, bandwidths in GB/s (1e9), medians. Out of place every implementation allocates its result. "
        "The yard-stick is what the memory system gives when all ranks copy as many bytes at once, half of them "
        "written by a neighbour."
    )
    return [Table(TITLE, columns, list(rows.values()), note)]


def _cells(figure: Figure, peers: list[str]) -> list[str]:
    bus = figure.median * (2 * (figure.ranks - 1) / figure.ranks)
    time_us = figure.detail["bytes"] / figure.median / 1e3
    wrong = "" if figure.detail["wrong"] is None else str(figure.detail["wrong"])
    ratios = [f"{figure.ratio[peer]:.2f}" if peer in figure.ratio else "" for peer in peers]
    return [number(time_us), number(figure.median), number(bus), wrong, *ratios]
