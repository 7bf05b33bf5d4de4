"""Many small tensors at once, submitted and waited for, with the counters of the control plane.

161 tensors of 1 KiB are the gradients of a model without their bytes. 100 to 10,000 tensors of 4 bytes measure only the
control plane, with the response cache and without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.figures import Figure, Series
from benchmarks.job import Job
from benchmarks.peers import Rank, each_async
from benchmarks.report import Table, plain
from benchmarks.timing import Contestant, Times, alternate, check
from horocache.core.metrics import Metrics

TITLE = "Many small tensors, submitted and waited for"

# Counters of horocache.metrics() that the table shows, per step.
COUNTERS = (
    "rounds",
    "slow_rounds",
    "flushes",
    "cache_hits",
    "cache_misses",
    "control_bytes",
    "control_frames",
    "fused_operations",
    "sleeps",
    "wakeups",
    "lock_taken",
)


def jobs(quick: bool) -> list[Job]:
    """One job per number of tensors."""
    sizes = [(161, 256), (100, 1), (1000, 1)] + ([] if quick else [(10_000, 1)])
    return [
        Job("burst", 2, {"tensors": tensors, "elements": elements, "budget_s": 1.5 if quick else 5.0})
        for tensors, elements in sizes
    ]


@dataclass
class Burst:
    """One set of tensors and its expected sums."""

    tensors: list[Any]
    patterns: list[Any]
    expected: list[Any]
    submit_s: list[float] = field(default_factory=list)

    def prepare(self) -> None:
        """Restore this rank's values in the tensors."""
        import torch

        torch._foreach_copy_(self.tensors, self.patterns)

    def wrong(self) -> int:
        """Return the number of elements that are not the sum."""
        pairs = zip(self.tensors, self.expected, strict=True)
        return sum(int((tensor != expected).sum()) for tensor, expected in pairs)


def make_burst(shapes: Sequence[Sequence[int]], rank: int, size: int) -> Burst:
    """Make tensors whose values depend on tensor and rank and whose sums are exact."""
    import torch

    tensors = [torch.empty(tuple(shape)) for shape in shapes]
    patterns = [torch.full_like(tensor, i % 97 + rank) for i, tensor in enumerate(tensors)]
    total = size * (size - 1) // 2
    expected = [torch.full_like(tensor, size * (i % 97) + total) for i, tensor in enumerate(tensors)]
    return Burst(tensors, patterns, expected)


def measure(rank: Rank, tensors: int, elements: int, budget_s: float) -> list[Series]:
    """Measure horocache and the peers, then horocache without peers for the other cache sizes."""
    label = f"{tensors:,} x {'1 KiB' if elements == 256 else '4 B'}"
    names = [f"t{i}" for i in range(tensors)]
    burst = make_burst([[elements]] * tensors, rank.rank, rank.size)
    contestants = [
        Contestant(impl, lambda run=run: run(burst.tensors), burst.prepare, wrong=burst.wrong)  # type: ignore[misc]
        for impl, run in each_async(rank, names).items()
        if impl != "horocache"
    ]
    if not rank.has("horocache"):
        check(rank.page, contestants)
        times = alternate(rank.page, contestants, repetitions=30, budget_s=budget_s)
        return _series(label, times)
    series = []
    for cache in _caches(tensors):
        case = f"{label}, cache {cache or 'on'}" if tensors != 161 else label
        series += _with_cache(rank, burst, names, contestants, case, cache, budget_s)
        contestants = []  # the peers have no cache: one measurement is enough
    return series


def _caches(tensors: int) -> list[str]:
    if tensors == 161:
        return [""]
    # By default the cache does not grow for a program that cycles through many times its capacity.
    return ["", "16384", "off"] if tensors > 4096 else ["", "off"]


def _with_cache(
    rank: Rank,
    burst: Burst,
    names: list[str],
    peers: list[Contestant],
    case: str,
    cache: str,
    budget_s: float,
) -> list[Series]:
    knobs = {"cache_capacity": 0 if cache == "off" else int(cache)} if cache else {}
    hvd = rank.horocache(**knobs)
    burst.submit_s.clear()
    ours = [
        Contestant("horocache", submit_all(hvd, burst, names), burst.prepare, wrong=burst.wrong),
        Contestant("horocache, one list", _list(hvd, burst, names), burst.prepare, wrong=burst.wrong),
        Contestant("horocache, one group", _groups(hvd, burst, names, 1), burst.prepare, wrong=burst.wrong),
    ]
    check(rank.page, [*ours, *peers])
    alone, counters = _alone(rank, ours[0], budget_s / 3)
    burst.submit_s.clear()
    series = _series(case, alternate(rank.page, [*ours, *peers], repetitions=30, budget_s=budget_s))
    for one in series:
        if one.impl == "horocache":
            one.counters = counters
            submitted = burst.submit_s[-len(one.values) :]
            series.append(Series(case, "horocache, submission alone", "us", submitted, partial=True))
            # Without the peers' runs in between, which evict horocache's data from the processor's caches.
            series.append(Series(case, "horocache, not alternated", "us", alone, partial=True))
            break
    if len(names) == 10_000 and not cache:
        series += _ten_groups(rank, hvd, burst, names, case, budget_s / 3)
    return series


def _alone(rank: Rank, contestant: Contestant, budget_s: float) -> tuple[list[float], dict[str, float]]:
    """Measure without the peers' turns; return the seconds of each run, and what a run adds to the counters."""
    import horocache as hc

    before, cpu = hc.metrics(), (time.process_time(), time.thread_time())
    seconds = alternate(rank.page, [contestant], repetitions=20, budget_s=budget_s)[contestant.name].seconds
    runs = len(seconds) + 2  # includes the two warm-up runs
    return seconds, {**counters_per_step(before, hc.metrics(), runs), **_cpu_per_step(cpu, runs)}


def _ten_groups(rank: Rank, hvd: Any, burst: Burst, names: list[str], case: str, budget_s: float) -> list[Series]:
    """Measure 10 groups, as an optimizer with 10 groups submits them."""
    impl = "horocache, 10 groups"
    contestant = Contestant(impl, _groups(hvd, burst, names, 10), burst.prepare, wrong=burst.wrong)
    check(rank.page, [contestant])
    burst.submit_s.clear()
    seconds, counters = _alone(rank, contestant, budget_s)
    submitted = burst.submit_s[-len(seconds) :]
    return [
        Series(case, impl, "us", seconds, partial=True, counters=counters),
        Series(case, f"{impl}, submission alone", "us", submitted, partial=True),
    ]


def _series(case: str, times: dict[str, Times]) -> list[Series]:
    return [Series(case, impl, "us", one.seconds, cpu_seconds=one.cpu_seconds) for impl, one in times.items()]


def _cpu_per_step(before: tuple[float, float], runs: int) -> dict[str, float]:
    process = time.process_time() - before[0]
    own = time.thread_time() - before[1]
    return {"daemon_cpu_us": (process - own) / runs * 1e6}


def submit_all(hvd: Any, burst: Burst, names: list[str]) -> Callable[[], None]:
    """Return a function that submits each tensor by itself, waits for all, and records the time of the submission."""

    def run() -> None:
        start, op = hvd.allreduce_async_, hvd.Sum
        begin = time.perf_counter()
        handles = [start(tensor, name=name, op=op) for tensor, name in zip(burst.tensors, names, strict=True)]
        burst.submit_s.append(time.perf_counter() - begin)
        for handle in handles:
            hvd.synchronize(handle)

    return run


def _list(hvd: Any, burst: Burst, names: list[str]) -> Callable[[], None]:
    """Return a function that submits all tensors in one call and waits for all in another."""

    def run() -> None:
        hvd.synchronize(hvd.allreduce_many_async_(burst.tensors, names=names, op=hvd.Sum))

    return run


def _groups(hvd: Any, burst: Burst, names: list[str], number: int) -> Callable[[], None]:
    size = len(names) // number
    parts = [burst.tensors[first : first + size] for first in range(0, len(names), size)]
    titles = [f"group {i} of {number}, of {len(names)}" for i in range(len(parts))]

    def run() -> None:
        start, op = hvd.grouped_allreduce_async_, hvd.Sum
        begin = time.perf_counter()
        handles = [start(part, name=title, op=op) for part, title in zip(parts, titles, strict=True)]
        burst.submit_s.append(time.perf_counter() - begin)
        for handle in handles:
            hvd.synchronize(handle)

    return run


def counters_per_step(before: Metrics, after: Metrics, steps: int, names: Sequence[str] = COUNTERS) -> dict[str, float]:
    """Return the increase of the named counters per step on this rank."""
    grown = after.since(before)
    return {name: grown[name] / steps for name in names}


def tables(figures: Sequence[Figure]) -> list[Table]:
    """Return the table of times, then the table of counters."""
    counted = [figure for figure in figures if figure.counters]
    if not counted:
        return [plain(TITLE, figures)]
    columns = ["case", "implementation", *(name.replace("_", " ") for name in COUNTERS), "daemon CPU us"]
    rows = [
        [figure.case, figure.impl, *(f"{figure.counters[name]:.4g}" for name in (*COUNTERS, "daemon_cpu_us"))]
        for figure in counted
    ]
    title = "Counters per step (the largest of the ranks; daemon CPU: all threads but the one that submits)"
    return [plain(TITLE, figures), Table(title, columns, rows)]
