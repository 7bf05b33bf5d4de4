"""Where the time of a job went, from its timelines.

After Figure 9 of "Accelerating Collective Communication in Data Parallel Training across Deep Learning Frameworks"
(the paper on Horovod's caching and grouping): an iteration's communication is coordination, waiting for data, and the
collective itself. Here waiting is told apart: for data of this rank, and for ranks that come later.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from horocache.observe.trace import Key, Span, Trace, key_of

# What an instant counts as, if several things go on: the first of these.
PARTS = ("collective", "copy", "queue", "coordination", "wait for others", "wait for data", "message")
_PART_OF = {
    "collective": "collective",
    "copy": "copy",
    "queue": "queue",
    "wait": "wait for data",
    "message": "message",
}


class RankTimes(NamedTuple):
    """Of one rank, in ms; ``parts`` has those of :data:`PARTS`. In the rest, ``nothing``, no operation was pending."""

    rank: int
    total: float
    parts: dict[str, float]
    nothing: float
    operations: int


class Latecomer(NamedTuple):
    """How often a rank was the last to submit, and for how long others waited for it, in ms, added up over them."""

    rank: int
    operations: int
    waited: float


class Breakdown(NamedTuple):
    """Of a job; times are sums over the traced time."""

    ranks: list[RankTimes]
    latecomers: list[Latecomer]  # the slowest rank first; empty if no operation was on several ranks
    steps: int  # times that the most frequent tensor was there, on rank 0 or the first rank that has a timeline


def break_down(traces: Sequence[Trace]) -> Breakdown:
    """Find out where the time went.

    Args:
        traces: at least one; without those of all ranks, waiting for the missing ones counts as coordination.
    """
    submitted = {trace.rank: _submissions(trace) for trace in traces}
    last: dict[Key, float] = {}
    for times in submitted.values():
        for key, time in times.items():
            last[key] = max(time, last.get(key, time))
    ranks = [_rank_times(trace, last) for trace in traces]
    return Breakdown(ranks, _latecomers(submitted), _steps(traces[0]))


def _submissions(trace: Trace) -> dict[Key, float]:
    """When each operation was submitted: its negotiation comes before it in the file."""
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
            if negotiation is not None:  # which failed, so that no operation came after it
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
    """Each stretch of time in which something goes on, as the first of the parts that go on."""
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
    waits: dict[tuple[int, int], list[tuple[float, float, str]]] = {}  # of whom for whom
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
