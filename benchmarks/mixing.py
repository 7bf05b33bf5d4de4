"""The tuning table of a run of benchmarks/mixed.py, and the backends that it chooses for a workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import machine
from benchmarks.cases.mixed_workloads import COARSE, FINE
from benchmarks.figures import Series
from benchmarks.workloads import Operation
from horocache.tuning.fingerprint import fingerprint_here
from horocache.tuning.lookup import World, nearest, usable_times
from horocache.tuning.plan import Unit
from horocache.tuning.run import Collected
from horocache.tuning.table import Candidate, Layout, Table

_VERSIONS = ("python", "numpy", "torch", "openmpi", "mpich")
_AUTO = "auto"  # the algorithm by which a backend chooses among its own


def table_of(series: Iterable[Series], command: Sequence[str], overlap: int) -> Table:
    """Return the tuning table of the measurements of ``cases/mixed_backends.py``, of all layouts."""
    collected = Collected()
    versions = machine.versions()
    collected.libraries = {name: versions[name] for name in _VERSIONS if name in versions}
    for one in series:
        key = World(one.detail["ranks"], one.detail["hosts"]), Unit(one.detail["op"], one.detail["bytes"])
        collected.sizes[key] = (*collected.sizes.get(key, ()), Candidate(**one.detail["candidate"]))
    return collected.table(versions["horocache"], fingerprint_here(), command, overlap)


def lines_of(table: Table, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a line of JSONL for each candidate of the table."""
    return [
        {
            "bench": "mixed_backends",
            "op": measurements.op,
            "ranks": layout.ranks,
            "hosts": layout.hosts,
            "bytes": size.bytes,
            "candidate": one.name,
            "median_us": one.median_us,
            "spread_us": one.spread_us,
            "repetitions": one.repetitions,
            "wrong": one.wrong,
            "reason": one.reason,
            "overlap": table.overlap,
            **about,
        }
        for measurements in table.operations
        for layout in measurements.layouts
        for size in layout.sizes
        for one in size.candidates
    ]


def choices(table: Table, ranks: int, hosts: int, operations: Sequence[Operation]) -> dict[str, list[str]]:
    """Choose a backend for each operation of a step: by the operation alone, and by operation and size.

    By the operation alone, the choice is among whole backends, each with its own choice of algorithms: the one whose
    times in the table, added over the step's operations of this kind, are the smallest. By operation and size, it is
    the fastest candidate at the nearest measured size. The tuned operation for an alltoallv is the alltoall.

    Raises:
        ValueError: the table lacks an operation on this layout.
    """
    times = {
        op: usable_times(_layout(table, op, ranks, hosts)) for op in {operation.tuned_as for operation in operations}
    }
    whole: dict[str, str] = {}
    for op, of_op in times.items():
        sizes = [_nearest(of_op, operation) for operation in operations if operation.tuned_as == op]
        sums = {
            backend: sum(of_op[size][name] for size in sizes)
            for name in set.intersection(*(set(of_op[size]) for size in sizes))
            if (backend := _whole(name)) is not None
        }
        whole[op] = min(sums, key=lambda backend: (sums[backend], backend))
    fine = []
    for operation in operations:
        of_size = times[operation.tuned_as][_nearest(times[operation.tuned_as], operation)]
        fine.append(min(of_size, key=lambda name: (of_size[name], name)))
    return {COARSE: [whole[operation.tuned_as] for operation in operations], FINE: fine}


def _whole(candidate: str) -> str | None:
    """Return the backend of a candidate that stands for the whole backend; None for one of several algorithms."""
    backend, _, algorithm = candidate.partition("/")
    return backend if algorithm in ("", _AUTO) else None


def _layout(table: Table, op: str, ranks: int, hosts: int) -> Layout:
    for layout in table.layouts_of(op):
        if (layout.ranks, layout.hosts) == (ranks, hosts):
            return layout
    raise ValueError(f"the tuning table has no times of {op} on {World(ranks, hosts)}")


def _nearest(times: dict[int, dict[str, float]], operation: Operation) -> int:
    return nearest(sorted(times), operation.bytes)
