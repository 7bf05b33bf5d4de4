"""Figures: the measurements of all ranks combined, with median, spread and ratios to the peers."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

OURS = "horocache"
# Factors from seconds to units of time, and from amounts per second to rates. Other units need no factor.
_TIME_SCALES = {"us": 1e6, "ms": 1e3, "s": 1.0}
_RATE_SCALES = {"GB/s": 1e-9, "samples/s": 1.0}


@dataclass
class Series:
    """One contestant's repetitions in one case, as one rank measured them."""

    case: str
    impl: str
    unit: str  # us, ms, s: shown as time; GB/s, samples/s: as amount over time; other units: as they are
    values: list[float]  # seconds, if the unit is a time or a rate
    amount: float = 1.0  # bytes or samples of one run, summed over the ranks if ranks do different work
    cpu_seconds: list[float] = field(default_factory=list)  # processor time of this rank's process, for each value
    partial: bool = False  # True for a part of what the peers' times include: has no ratio
    counters: dict[str, float] = field(default_factory=dict)  # of this rank; the largest value over the ranks is shown
    detail: dict[str, Any] = field(default_factory=dict)  # equal on all ranks: sizes, dtypes, ...


@dataclass
class Figure:
    """One line of the results."""

    bench: str
    case: str
    impl: str
    ranks: int
    value: float
    unit: str
    median: float
    spread: tuple[float, float]  # quartiles
    best: float
    repetitions: int
    cpu_us: float | None  # processor time of one rank's process, all threads, for one run; median
    ratio: dict[str, float]  # peer -> how many times as fast as the peer: median over the pairs of the same repetition
    counters: dict[str, float] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)


def merge(bench: str, ranks: int, of_ranks: Sequence[Sequence[Series]]) -> list[Figure]:
    """Combine the ranks' series into the figures of one job; the slowest rank of each repetition counts.

    Raises:
        ValueError: the ranks measured different things.
    """
    together = slowest(bench, of_ranks)
    return [make_figure(bench, ranks, series, _ratios(series, together)) for series in together]


def slowest(bench: str, of_ranks: Sequence[Sequence[Series]]) -> list[Series]:
    """Combine the ranks' series; the slowest rank of each repetition counts.

    Raises:
        ValueError: the ranks measured different things.
    """
    merged = []
    for parts in zip(*of_ranks, strict=True):
        first = parts[0]
        keys = {(part.case, part.impl, part.unit, len(part.values)) for part in parts}
        if len(keys) != 1:
            raise ValueError(f"{bench}: the ranks measured different things: {sorted(map(str, keys))}")
        values = [max(values) for values in zip(*(part.values for part in parts), strict=True)]
        counters = {name: max(part.counters.get(name, 0.0) for part in parts) for name in first.counters}
        cpu = [statistics.fmean(values) for values in zip(*(part.cpu_seconds for part in parts), strict=True)]
        merged.append(replace(first, values=values, cpu_seconds=cpu, counters=counters))
    return merged


def _shown(series: Series) -> list[float]:
    if series.unit in _TIME_SCALES:
        return [value * _TIME_SCALES[series.unit] for value in series.values]
    if series.unit in _RATE_SCALES:
        return [series.amount / value * _RATE_SCALES[series.unit] for value in series.values]
    return series.values


def _ratios(series: Series, together: Iterable[Series]) -> dict[str, float]:
    if not series.impl.startswith(OURS) or series.partial:
        return {}
    return {
        peer.impl: paired_ratio(series.unit, _shown(series), _shown(peer))
        for peer in together
        if peer.case == series.case and peer.unit == series.unit and not peer.impl.startswith(OURS)
    }


def make_figure(bench: str, ranks: int, series: Series, ratio: Mapping[str, float]) -> Figure:
    """Return median and spread of a job's series; ``ratio`` maps a peer to how many times as fast the series is."""
    shown = _shown(series)
    median = statistics.median(shown)
    low, high = quartiles(shown)
    best = max(shown) if series.unit in _RATE_SCALES else min(shown)
    return Figure(
        bench,
        series.case,
        series.impl,
        ranks,
        _round(median),
        series.unit,
        _round(median),
        (_round(low), _round(high)),
        _round(best),
        len(shown),
        _round(statistics.median(series.cpu_seconds) * 1e6) if series.cpu_seconds else None,
        {peer: _round(value) for peer, value in ratio.items()},
        {name: _round(value) for name, value in series.counters.items()},
        series.detail,
    )


def paired_ratio(unit: str, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how many times as fast ``ours`` is: the median over the pairs of the same repetition."""
    pairs = list(zip(ours, theirs, strict=False))
    if unit in _RATE_SCALES:
        return statistics.median(mine / other if other else float("inf") for mine, other in pairs)
    return statistics.median(other / mine if mine else float("inf") for mine, other in pairs)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and third quartile; of one value, the value itself."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def write_jsonl(path: Path, figures: Iterable[Figure], about: Mapping[str, Any]) -> None:
    """Write one JSON object per figure and line; each line has everything that is needed to interpret it."""
    with path.open("w", encoding="utf-8") as file:
        for figure in figures:
            file.write(json.dumps({**asdict(figure), **about}) + "\n")
