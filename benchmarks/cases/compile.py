"""The time that the compiler takes for programs of many ranks, including the proof."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank

TITLE = "Compiling and proving collective programs"
_REPETITIONS = 3


def jobs(quick: bool) -> list[Job]:
    """One job of one process."""
    return [Job("compile", 1, {"repetitions": 1 if quick else _REPETITIONS}, 240.0, own_launcher=True)]


def measure(rank: Rank, repetitions: int) -> list[Series]:
    """Measure the largest programs that users have written."""
    if not rank.has("horocache"):
        return []
    from horocache.lang import algorithms

    programs: dict[str, Callable[[], Any]] = {
        "ring of 64": lambda: algorithms.ring(64),
        "all pairs of 32": lambda: algorithms.all_pairs(32),
        "hierarchical 8 x 8": lambda: algorithms.hierarchical(8, 8),
    }
    return [Series(case, "horocache", "s", _times(write, repetitions)) for case, write in programs.items()]


def _times(write: Callable[[], Any], repetitions: int) -> list[float]:
    from horocache.lang import compile_program

    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        compile_program(write())  # includes the proof of the compiled program
        times.append(time.perf_counter() - begin)
    return times
