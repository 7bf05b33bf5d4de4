"""Every backend and algorithm over operations and sizes, by the measurement of ``horocache tune``, gloo included."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.figures import Series
from benchmarks.peers import Rank, mixed

_PATIENCE_S = 30.0  # after which an operation counts as stuck


def measure(
    rank: Rank, ops: list[str], sizes: list[int], overlap: int, repetitions: int, seconds: float
) -> list[Series]:
    """Measure all candidates; returns a series for each, whose value is its median and whose detail has everything.

    Args:
        rank: this rank.
        ops: operations of a tuning table.
        sizes: in bytes, as Note [Size of an operation] of ``horocache.tuning.operations`` defines them.
        overlap: operations of a set.
        repetitions: most repetitions of each set.
        seconds: for the repetitions of an operation and size.
    """
    import msgspec

    import horocache as hc
    from horocache.tuning.measure import Measurement, backends_of_job
    from horocache.tuning.plan import JobPlan, Unit

    mixed(rank)
    units = tuple(Unit(op, size) for op in ops for size in sizes)
    plan = JobPlan(hc.size(), hc.cross_size(), units, (), {}, overlap, repetitions, math.inf, _PATIENCE_S)
    measurement = Measurement(plan, backends_of_job())
    series = []
    for unit in units:
        where: dict[str, Any] = {"op": unit.op, "bytes": unit.bytes, "ranks": plan.ranks, "hosts": plan.hosts}
        for one in measurement.measure(unit, seconds):
            detail = {**where, "candidate": msgspec.to_builtins(one)}
            values = [(one.median_us or 0.0) * 1e-6]
            series.append(Series(f"{unit.op}, {unit.bytes}", one.name, "us", values, detail=detail))
    return series
