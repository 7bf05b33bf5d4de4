"""Autotune against an exhaustive small grid: the cost of tuning, and how close its result comes to the best point.

A step is a backward pass of a real model in PyTorch, imitated by sleeping, until all gradients are averaged; see
``benchmarks.backward``. First every point of the grid is measured, then autotune searches, and then the default, the
grid's best point and autotune's result take turns.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.architectures import load
from benchmarks.backward import Pass, TorchPasses
from benchmarks.figures import Series
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate, check

DEFAULT, BEST, TUNED, GRID = "default", "best of the grid", "horocache, autotuned", "grid"
_WARM_UP = 4  # steps: 1 measures the order of the gradients, 2 has the final groups, 3 hits the cache
_LATEST_S = 240.0  # for a search
_STEPS_PER_SAMPLE = 5

Point = Mapping[str, Any]


def measure(
    rank: Rank,
    model: str,
    compute_ms: float,
    grid: dict[str, list[Any]],
    samples: int,
    steps: int,
    rounds: int,
) -> list[Series]:
    """Measure the grid, tune, and compare.

    Args:
        rank: this rank.
        model: the model whose gradients are reduced.
        compute_ms: duration of the backward pass by itself.
        grid: the values of each setting of the grid: ``num_groups`` and knobs.
        samples: of autotune's search.
        steps: timed steps of a point, in each round.
        rounds: of the comparison.
    """
    plan = Pass(load(model)[::-1], compute_ms / 1e3, rank.rank, rank.size)
    passes = TorchPasses(plan)
    detail = {"model": model, "compute_ms": compute_ms}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    series = []
    slowest = []
    for point in points:
        seconds = _steps(rank, passes, point, steps)
        slowest.append(_over_ranks(rank, seconds))
        series.append(Series(f"{model}, {_text(point)}", GRID, "ms", seconds, detail={**detail, "point": point}))
    best = points[slowest.index(min(slowest))]
    tuned, cost = _tune(rank, passes, samples)
    found: dict[str, list[float]] = {}
    finalists: dict[str, Point] = {DEFAULT: {"num_groups": "auto"}, BEST: best, TUNED: tuned}
    for number in range(rounds):
        order = list(finalists)
        for name in order[number % 3 :] + order[: number % 3]:
            found.setdefault(name, []).extend(_steps(rank, passes, finalists[name], steps))
    for name, finalist in finalists.items():
        own = {**detail, "point": dict(finalist), **(cost if name == TUNED else {})}
        series.append(Series(f"{model}, in turns", name, "ms", found[name], detail=own))
    return series


def _steps(rank: Rank, passes: TorchPasses, point: Point, steps: int) -> list[float]:
    """Start horocache with the settings of a point, check a step, and return the seconds of the timed steps."""
    knobs = {name: value for name, value in point.items() if name != "num_groups"}
    rank.page.barrier()
    rank.horocache_as_launched(**knobs)
    way = passes.way(point.get("num_groups", "auto"))
    contestant = Contestant("point", way.run, way.prepare, wrong=way.wrong)
    check(rank.page, [contestant])
    return alternate(rank.page, [contestant], repetitions=steps, budget_s=math.inf, warm_up=_WARM_UP)["point"].seconds


def _over_ranks(rank: Rank, seconds: Sequence[float]) -> float:
    """Return the median of the slowest rank's steps, the same on all ranks."""
    import numpy as np

    import horocache as hc

    slowest = hc.allreduce(np.array(seconds), op=hc.Max, name="slowest")
    return float(np.median(slowest))


def _tune(rank: Rank, passes: TorchPasses, samples: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train until autotune has its result; return the result, as a point, and the cost."""
    path = rank.directory / "autotuned.json"
    said = _Said()
    logging.getLogger("horocache.autotune").addHandler(said)
    rank.horocache_as_launched(
        autotune=True,
        autotune_save=str(path),
        autotune_bayes_opt_max_samples=samples,
        autotune_steps_per_sample=_STEPS_PER_SAMPLE,
    )
    way = passes.way("auto")  # type: ignore[arg-type]
    begin, steps = time.perf_counter(), 0
    while not rank.page.agree(int(path.exists())):
        way.prepare()
        way.run()
        steps += 1
        if rank.page.agree(int(time.perf_counter() - begin > _LATEST_S)):
            raise TimeoutError(f"autotune had no result after {_LATEST_S:g} s and {steps} steps")
    seconds = time.perf_counter() - begin
    settings = json.loads(path.read_text(encoding="utf-8"))["settings"]
    logging.getLogger("horocache.autotune").removeHandler(said)
    if "cache" in settings and not settings.pop("cache"):
        settings["cache_capacity"] = 0
    cost = {"tuning_steps": steps, "tuning_s": round(seconds, 2), "said": said.lines}
    return settings, cost


class _Said(logging.Handler):
    """Keeps the lines of autotune's logger, in which rank 0 tells the result and its cost."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _text(point: Point) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.items())
