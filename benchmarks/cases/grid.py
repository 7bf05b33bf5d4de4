"""The paper's grid on one data plane and with one framework; started by benchmarks/paper.py.

All cells take turns in the same processes. The numbers of groups alternate from repetition to repetition. Cache and
cycle mode, which need a restarted daemon, alternate from round to round.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.architectures import load
from benchmarks.backward import ALONE, NumpyPasses, Pass, TorchPasses, passes
from benchmarks.figures import Series
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate, check

CACHES, MODES = ("on", "off"), ("event", "tick")
LEFT_OUT = "left out"
_COUNTERS = ("rounds", "control_bytes", "payload_bytes")
_SIZES = "fused_size_log2."
_WARM_UP = 3  # steps: 1 measures the order of the gradients, 2 has the final groups, 3 hits the cache
_AT_LEAST = 2  # rounds, even if the budget is used up


@dataclass
class Cell:
    """One point of the grid on one rank."""

    cache: str
    mode: str
    groups: int
    seconds: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # sums over all timed steps

    def series(self, detail: Mapping[str, Any]) -> Series:
        """Return the series that the rank reports."""
        steps = len(self.seconds)
        own = {"cache": self.cache, "mode": self.mode, "groups": self.groups}
        case = f"{detail['framework']}, {detail['plane']}, cache {self.cache}, {self.mode}"
        counters = {name: count / steps for name, count in sorted(self.counts.items())}
        return Series(case, groups_label(self.groups), "ms", self.seconds, counters=counters, detail={**detail, **own})


def groups_label(groups: int) -> str:
    """``no communication``, ``0 groups``, ``1 group``, ..."""
    return "no communication" if groups == ALONE else f"{groups} group{'s' * (groups != 1)}"


def measure(
    rank: Rank,
    framework: str,
    plane: str,
    backend: str,
    knobs: dict[str, Any],
    model: str,
    compute_ms: float,
    groups: list[int],
    steps: int,
    budget_s: float,
) -> list[Series]:
    """Measure all cells of a framework and a plane, in rounds until the time is up; or return a series with the reason.

    Args:
        rank: this rank.
        framework: ``torch`` or ``numpy``.
        plane: name of the data plane.
        backend: the backend of the plane, as ``backend=`` takes it.
        knobs: choose the backend for all operations; include ``group_by``.
        model: the model whose gradients are reduced.
        compute_ms: duration of the backward pass by itself.
        groups: the numbers of groups to compare.
        steps: timed repetitions per round.
        budget_s: no further round begins if it would end later.
    """
    detail = {"framework": framework, "plane": plane, "model": model, "compute_ms": compute_ms, **knobs}
    why = _why_not(rank, backend, knobs)
    if why:
        return [Series(f"{framework}, {plane}", LEFT_OUT, "", [0.0], detail={**detail, "why": why})]
    from horocache.data_parallel.bucketing import split_by_bytes, split_by_count

    plan = Pass(load(model)[::-1], compute_ms / 1e3, rank.rank, rank.size)
    by_count = knobs.get("group_by") == "count"
    ways = passes(framework, plan, (lambda order, _, n: split_by_count(order, n)) if by_count else split_by_bytes)
    cells = {(c, m): [Cell(c, m, n) for n in (ALONE, *groups)] for c, m in itertools.product(CACHES, MODES)}
    begin = time.perf_counter()
    for number in itertools.count(1):
        turn = number % len(cells)
        for cache, mode in [*cells][turn:] + [*cells][:turn]:
            extra = {"cycle_mode": mode, **({"cache_capacity": 0} if cache == "off" else {})}
            rank.page.barrier()
            hc = rank.horocache_as_launched(**knobs, **extra)
            _block(rank, hc, ways, cells[cache, mode], steps, number == 1)
            gc.collect()  # deletes the optimizers before their daemon ends
        elapsed = time.perf_counter() - begin
        if rank.page.agree(int(number >= _AT_LEAST and elapsed * (number + 1) / number > budget_s)):
            break
    return [cell.series(detail) for cell in itertools.chain(*cells.values())]


def _why_not(rank: Rank, backend: str, knobs: Mapping[str, Any]) -> str:
    """Return why the backend cannot reduce here; empty if it can. Equal on all ranks."""
    import numpy as np

    hc = rank.horocache_as_launched(**knobs)
    try:
        hc.allreduce(np.ones(1, np.float32), name="probe", backend=backend)
    except hc.UnsupportedError as error:
        return str(error)
    return ""


def _block(
    rank: Rank, hc: Any, ways: NumpyPasses | TorchPasses, cells: Sequence[Cell], steps: int, first: bool
) -> None:
    """Measure some steps of all numbers of groups with the running daemon; checks the results in the first round."""
    tally = Tally(hc.metrics)
    contestants = []
    for cell in cells:
        way, name = ways.way(cell.groups), groups_label(cell.groups)
        prepare = _both(way.prepare, partial(tally.begin, name))
        contestants.append(Contestant(name, way.run, prepare, wrong=way.wrong))
    if first:
        check(rank.page, contestants)
    times = alternate(rank.page, contestants, repetitions=steps, budget_s=float("inf"), warm_up=_WARM_UP)
    tally.end()
    for cell, (name, one) in zip(cells, times.items(), strict=True):
        cell.seconds += one.seconds
        for step in tally.steps[name][-steps:]:
            cell.counts += step


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


class Tally:
    """The increase of the counters in each step of the contestants, which take turns.

    The counters of a step may be published a moment after it, so they are read when the next step is prepared.
    """

    def __init__(self, metrics: Callable[[], dict[str, Any]]) -> None:
        self.steps: dict[str, list[Counter[str]]] = {}
        self._metrics = metrics
        self._running = ""
        self._before: dict[str, Any] = {}

    def begin(self, name: str) -> None:
        """Start to count the next step, of contestant ``name``."""
        self.end()
        self._running = name

    def end(self) -> None:
        """Record the last step."""
        after = self._metrics()
        if self._running:
            names = [name for name in after if name in _COUNTERS or name.startswith(_SIZES)]
            grown = Counter({name: after[name] - self._before.get(name, 0) for name in names})
            self.steps.setdefault(self._running, []).append(grown)
        self._before, self._running = after, ""
