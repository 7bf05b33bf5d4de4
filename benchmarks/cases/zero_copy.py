"""Allreduce in place of tensors in shared memory, and of private ones, beside the memory's bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.figures import Figure, Series
from benchmarks.job import Job
from benchmarks.peers import Rank, blocking
from benchmarks.report import Table, number, size_label
from benchmarks.timing import Contestant, alternate, check
from benchmarks.yardstick import NAME as YARDSTICK
from benchmarks.yardstick import Yardstick

TITLE = "One allreduce, of shared tensors and of private ones"
SHARED, PRIVATE = "horocache, shared", "horocache, private"
_MIB = (1, 4, 16, 64)
_COUNTED = ("bytes_copied", "bytes_folded")


def jobs(quick: bool) -> list[Job]:
    """One job per number of ranks."""
    parameters = {"mib": [4] if quick else list(_MIB), "repetitions": 5 if quick else 30}
    return [Job("zero_copy", ranks, parameters, timeout_s=300.0) for ranks in ((2,) if quick else (2, 4))]


def measure(rank: Rank, mib: list[int], repetitions: int) -> list[Series]:
    """Measure all sizes; the yard-stick takes turns with the contestants."""
    yardstick = Yardstick(rank, max(mib) << 20)
    series = []
    for size in (m << 20 for m in mib):
        contestants = _contestants(rank, size)
        wrong = check(rank.page, contestants)
        contestants.append(yardstick.contestant(size))
        times = alternate(rank.page, contestants, repetitions=repetitions, budget_s=60.0)
        for impl, one in times.items():
            detail = {"bytes": size, "dtype": "float32", "redop": "sum", "wrong": wrong.get(impl)}
            counters = _counters(rank, contestants, impl, size)
            case = size_label(size)
            series.append(
                Series(case, impl, "GB/s", one.seconds, float(size), one.cpu_seconds, False, counters, detail)
            )
    return series


def _contestants(rank: Rank, size: int) -> list[Contestant]:
    import torch

    count = size // 4
    base = torch.arange(count, dtype=torch.float32).remainder_(1021.0)
    pattern = base + float(rank.rank)
    expected = base.mul_(rank.size).add_(rank.size * (rank.size - 1) / 2)
    private = torch.empty_like(pattern)
    found = []

    def add(name: str, run: Any, tensor: torch.Tensor) -> None:
        def prepare() -> None:
            tensor.copy_(pattern)  # writes the values anew, as a backward pass does

        found.append(Contestant(name, lambda: run(tensor), prepare, wrong=lambda: int((tensor != expected).sum())))

    for impl, run in blocking(rank, f"private {size}").items():
        add(PRIVATE if impl == "horocache" else impl, run, private)
    if rank.has("horocache"):
        hvd = rank.horocache()
        name = f"shared {size}"
        add(SHARED, lambda tensor: hvd.allreduce_(tensor, name=name, op=hvd.Sum), hvd.empty_shared(count))
    return found


def _counters(rank: Rank, contestants: Sequence[Contestant], impl: str, size: int) -> dict[str, float]:
    """Return the bytes that one run of horocache copies and stores, for each byte of the tensor."""
    if not impl.startswith("horocache"):
        return {}
    import horocache as hc

    run = next(one for one in contestants if one.name == impl)
    run.prepare()
    rank.page.barrier()
    before = hc.metrics()
    run.run()
    rank.page.barrier()
    grown = hc.metrics().since(before)
    return {name: grown[name] / size for name in _COUNTED}


def tables(figures: Sequence[Figure]) -> list[Table]:
    """One row per number of ranks, size and implementation."""
    peers = list(dict.fromkeys(figure.impl for figure in figures if not figure.impl.startswith("horocache")))
    columns = ["ranks", "size", "implementation", "time us", "algbw GB/s", "quartiles", "#wrong"]
    columns += ["copied / byte", "stored / byte", *(f"x {peer}" for peer in peers)]
    rows = []
    for figure in figures:
        wrong = "" if figure.detail["wrong"] is None else str(figure.detail["wrong"])
        counted = [
            f"{figure.counters[name]:.2f}" if figure.counters else "" for name in ("bytes_copied", "bytes_folded")
        ]
        ratios = [f"{figure.ratio[peer]:.2f}" if peer in figure.ratio else "" for peer in peers]
        time_us = number(figure.detail["bytes"] / figure.median / 1e3)
        spread = " .. ".join(number(edge) for edge in figure.spread)
        row = [str(figure.ranks), figure.case, figure.impl, time_us, number(figure.median), spread, wrong]
        rows.append([*row, *counted, *ratios])
    note = f"The {YARDSTICK}: every rank copies as many bytes of shared memory at the same time."
    return [Table(TITLE, columns, rows, note)]
