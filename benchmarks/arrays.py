"""Contestants that sum one NumPy array over the ranks, in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.figures import Series
from benchmarks.peers import Rank
from benchmarks.report import size_label
from benchmarks.timing import Contestant, alternate, check

Sum = Callable[[Any], None]


def compare(
    rank: Rank, runs: Mapping[str, Sum], sizes: Sequence[int], unit: str, repetitions: int, budget_s: float
) -> list[Series]:
    """Measure every size (bytes), contestants alternated; ``detail`` has the size and the number of wrong elements."""
    series = []
    for size in sizes:
        contestants = [_contestant(name, run, size, rank.size) for name, run in runs.items()]
        series += race(rank, size_label(size), size, contestants, unit, repetitions, budget_s)
    return series


def race(
    rank: Rank, case: str, size: int, contestants: Sequence[Contestant], unit: str, repetitions: int, budget_s: float
) -> list[Series]:
    """Check and alternate contestants of one case; ``detail`` has the size (bytes) and the number of wrong elements."""
    wrong = check(rank.page, contestants)
    times = alternate(rank.page, contestants, repetitions=repetitions, budget_s=budget_s, warm_up=3)
    series = []
    for name, one in times.items():
        detail = {"bytes": size, "wrong": wrong[name]}
        series.append(Series(case, name, unit, one.seconds, cpu_seconds=one.cpu_seconds, detail=detail))
    return series


def _contestant(name: str, run: Sum, size: int, ranks: int) -> Contestant:
    import numpy as np

    array = np.empty(size // 4, np.float32)
    pattern = (np.arange(size // 4) % 1021).astype(np.float32)
    inner = 20 if size < 1 << 16 else 5 if size < 1 << 20 else 1

    def prepare() -> None:
        array[:] = pattern

    def wrong() -> int:
        return int((array != pattern * ranks).sum())

    return Contestant(name, lambda: run(array), prepare, inner, wrong)
