"""Divides the time of a job into parts, from its timelines.

Follows Figure 9 of "Accelerating Collective Communication in Data Parallel Training across Deep Learning Frameworks"
(the paper on Horovod's caching and grouping), which divides an iteration's communication into coordination, waiting for
data, and the collective itself. Here, waiting has two parts: for data of this rank, and for late ranks.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from horocache.observe.trace import Key, Span, Trace, key_of

# The parts by precedence: if several parts run at an instant, the instant counts for the first of them.
PARTS = ("collective", "copy", "queue", "coordination", "wait for others", "wait for data", "message")
_PART_OF = {
    "collective": "collective",
    "copy": "copy",
    "queue": "queue",
    "wait": "wait for data",
    "message": "message",
}


class RankTimes(NamedTuple):
    """Times of one rank, in ms, by part (:data:`PARTS`); during ``nothing``, no operation was pending."""

    rank: int
    total: float
    parts: dict[str, float]
    nothing: float
    operations: int


class Latecomer(NamedTuple):
    """How often a rank was the last to submit an operation, and how long the other ranks waited for it: ms, summed."""

    rank: int
    operations: int
    waited: float


class Breakdown(NamedTuple):
    """Times of a job, summed over the traced time."""

    ranks: list[RankTimes]
    latecomers: list[Latecomer]  # the slowest rank first; empty if no operation ran on several ranks
    steps: int  # occurrences of the most frequent tensor, on the first rank that has a timeline


def break_down(traces: Sequence[Trace]) -> Breakdown:
    """Divide the time of each rank into parts.

    Args:
        traces: at least one. If ranks are missing, the time of waiting for them counts as coordination.
    """
    submitted = {trace.rank: _submissions(trace) for trace in traces}
    last: dict[Key, float] = {}
    for times in submitted.values():
        for key, time in times.items():
            last[key] = max(time, last.get(key, time))
    ranks = [_rank_times(trace, last) for trace in traces]
    return Breakdown(ranks, _latecomers(submitted), _steps(traces[0]))


def _submissions(trace: Trace) -> dict[Key, float]:
    """Return when each operation was submitted: its negotiation precedes it in the file."""
    times: dict[Key, float] = {}
    negotiation: Span | None = None
    for span in trace.spans:
        if span.category == "control":
            negotiation = span
        key = key_of(span)
        if key is not None and negotiation is not None:
            times[key] = negotiation.begin
    return times


def _intervals(trace: Trace, last: dict[Key, float]) -> Iterator[tuple[float, float, str]]:
    negotiation: Span | None = None
    for span in trace.spans:
        if span.category == "control":
            if negotiation is not None:  # the negotiation failed, so no operation followed it
                yield negotiation.begin, negotiation.end, "coordination"
            negotiation = span
        elif span.category == "operation" and negotiation is not None:
            key = key_of(span)
            waited = min(last.get(key, negotiation.begin), negotiation.end) if key else negotiation.begin
            yield negotiation.begin, waited, "wait for others"
            yield waited, negotiation.end, "coordination"
            negotiation = None
        elif span.category in _PART_OF:
            yield span.begin, span.end, _PART_OF[span.category]


def _rank_times(trace: Trace, last: dict[Key, float]) -> RankTimes:
    intervals = [interval for interval in _intervals(trace, last) if interval[1] > interval[0]]
    parts = dict.fromkeys(PARTS, 0.0)
    for part, duration in _sweep(intervals):
        parts[part] += duration / 1e3
    begin = min((interval[0] for interval in intervals), default=0.0)
    end = max((interval[1] for interval in intervals), default=0.0)
    total = (end - begin) / 1e3
    operations = sum(span.category == "operation" for span in trace.spans)
    return RankTimes(trace.rank, total, parts, max(total - sum(parts.values()), 0.0), operations)


def _sweep(intervals: Iterable[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    """Yield the duration of each stretch of time in which parts run, under the first of these parts in PARTS."""
    bounds = [(time, begins, part) for begin, end, part in intervals for time, begins in ((begin, 1), (end, -1))]
    heapq.heapify(bounds)
    under_way: Counter[str] = Counter()
    before = 0.0
    while bounds:
        time, change, part = heapq.heappop(bounds)
        current = next((name for name in PARTS if under_way[name] > 0), None)
        if current is not None and time > before:
            yield current, time - before
        under_way[part] += change
        before = time


def _latecomers(submitted: dict[int, dict[Key, float]]) -> list[Latecomer]:
    by_key: dict[Key, list[tuple[float, int]]] = {}
    for rank, times in submitted.items():
        for key, time in times.items():
            by_key.setdefault(key, []).append((time, rank))
    operations: Counter[int] = Counter()
    waits: dict[tuple[int, int], list[tuple[float, float, str]]] = {}  # (last rank, waiting rank) -> its waits
    for entries in by_key.values():
        if len(entries) < 2:
            continue
        latest, last = max(entries)
        operations[last] += 1
        for time, rank in entries:
            if time < latest:
                waits.setdefault((last, rank), []).append((time, latest, "wait for others"))
    waited = dict.fromkeys(operations, 0.0)
    for (last, _), intervals in waits.items():
        waited[last] += sum(duration for _, duration in _sweep(intervals)) / 1e3
    found = [Latecomer(rank, operations[rank], waited[rank]) for rank in operations]
    return sorted(found, key=lambda late: -late.waited)


def _steps(trace: Trace) -> int:
    counts = Counter(span.row for span in trace.spans if span.category == "operation")
    return max(counts.values(), default=0)
