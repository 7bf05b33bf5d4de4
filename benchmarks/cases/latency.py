"""One small blocking allreduce in a loop: the cost of an agreement that no computation hides."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank, blocking
from benchmarks.timing import Contestant, alternate, check

TITLE = "Small blocking allreduce, cached"


def jobs(quick: bool) -> list[Job]:
    """2, 4 and 8 ranks, for any number of cores."""
    return [
        Job(
            "latency",
            ranks,
            {"elements": elements, "repetitions": 10 if quick else 40, "budget_s": 2.0 if quick else 6.0},
        )
        for elements in (1, 256)
        for ranks in ((2,) if quick else (2, 4, 8))
    ]


def measure(rank: Rank, elements: int, repetitions: int, budget_s: float) -> list[Series]:
    """Measure blocks of calls, alternated."""
    import torch

    contestants = [
        _contestant(name, run, torch.empty(elements), rank.size) for name, run in blocking(rank, "latency").items()
    ]
    check(rank.page, contestants)
    times = alternate(rank.page, contestants, repetitions=repetitions, budget_s=budget_s, warm_up=5)
    label = "4 B" if elements == 1 else "1 KiB"
    return [Series(label, name, "us", one.seconds, cpu_seconds=one.cpu_seconds) for name, one in times.items()]


def _contestant(name: str, run: Any, tensor: Any, size: int) -> Contestant:
    def prepare() -> None:
        tensor.fill_(1.0)

    return Contestant(
        name,
        lambda: run(tensor),
        prepare,
        inner=20,  # sums grow to size ** 20 in place, which float32 holds for 8 ranks
        wrong=lambda: int((tensor != size).sum()),
    )
