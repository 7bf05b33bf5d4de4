"""Calls of a mixture-of-experts layer to which random ranks come late: the time of each rank, and the lost tokens.

This is the study of Aristos (section 2, figure 2) with known delays. All ranks start a call together; in each call some
ranks first sleep, up to 100 times as long as others (:func:`benchmarks.moe_setup.delays`). Every way gets the same
delays. The time of a rank is that within its call, from its own start to its own end, so that it has what the rank
waits for others and not its own delay.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from benchmarks import moe_setup
from benchmarks.figures import OURS, Series
from benchmarks.moe_setup import BALANCED, Shape
from benchmarks.peers import Rank

ONE_SIDED = f"{OURS}, one_sided"
_PAUSE_S = 0.2e-3  # between two looks of a rank that waits for the next call
_WARM_UP = 3


def early(epsilon: int) -> str:
    """Return the name of the one-sided exchange that leaves early."""
    return f"{ONE_SIDED}, epsilon = {epsilon}"


def measure(
    rank: Rank, shape: dict[str, int], late: list[int], calls: int, unit_s: float, tau_s: float
) -> list[Series]:
    """Measure every exchange, and the one-sided one with every epsilon.

    Args:
        rank: this rank.
        shape: fields of Shape.
        late: for each load: how many ranks are late in each call.
        calls: of each way and load.
        unit_s: the shortest delay.
        tau_s: how long a rank of an early exit stays after its countdown has begun.
    """
    from horocache.moe.exchanges import exchange_names

    rank.horocache(**moe_setup.KNOBS)
    made = Shape(**shape)
    ways: dict[str, dict[str, Any]] = {f"{OURS}, {name}": {"exchange": name} for name in exchange_names()}
    for epsilon in range(rank.size):
        ways[early(epsilon)] = {"exchange": "one_sided", "epsilon": epsilon, "tau": tau_s}
    layers = {
        name: moe_setup.layer(options.pop("exchange"), BALANCED, made, rank.rank, **options)
        for name, options in ways.items()
    }
    x = torch.randn(made.tokens, made.hidden, generator=torch.Generator().manual_seed(rank.rank))
    _check(layers, x)
    series = []
    for number in late:
        wait = moe_setup.delays(rank.size, number, calls, unit_s)[:, rank.rank].tolist()
        case = f"{rank.size} ranks, {number or 'none'} late"
        detail = {"late": number, "tau_s": tau_s, "unit_s": unit_s, "of": str(made), "calls": calls}
        series += _load(rank, layers, x, wait, case, detail)
    return series


def _check(layers: dict[str, Any], x: torch.Tensor) -> None:
    """Connect the layers; raise if one that loses nothing gives other bits than the first one."""
    wanted = None
    for name, layer in layers.items():
        for _ in range(_WARM_UP):
            with torch.no_grad():
                output = layer(x)[0]
        if layer.early_exit.tau < math.inf:
            continue
        if wanted is not None and not torch.equal(output, wanted):
            raise AssertionError(f"{name} gives other outputs than the first exchange")
        wanted = output


def _load(
    rank: Rank, layers: dict[str, Any], x: torch.Tensor, wait: list[float], case: str, detail: dict[str, Any]
) -> list[Series]:
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    for layer in layers.values():
        layer.reset_statistics()
    for delay in wait:
        for name, layer in layers.items():
            rank.page.barrier(_PAUSE_S)
            if delay:
                time.sleep(delay)
            start = time.perf_counter()
            with torch.no_grad():
                layer(x)
            seconds[name].append(time.perf_counter() - start)
    series = []
    for name, layer in layers.items():
        counted = layer.statistics()
        counters = {"slots": float(counted.sent), "dropped": float(sum(counted.dropped.values()))}
        series.append(Series(case, name, "ms", seconds[name], counters=counters, detail=detail))
    return series


def pooled(of_ranks: list[list[Series]]) -> list[Series]:
    """Return the series with the times of all ranks, and their counters added up."""
    merged = []
    for parts in zip(*of_ranks, strict=True):
        first = parts[0]
        counters = {name: sum(part.counters[name] for part in parts) for name in first.counters}
        values = [value for part in parts for value in part.values]
        merged.append(Series(first.case, first.impl, first.unit, values, counters=counters, detail=first.detail))
    return merged
