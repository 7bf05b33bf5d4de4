"""``"auto"`` by a tuning table against every fixed backend and algorithm, alternated: sets of overlapped operations."""

from __future__ import annotations

from typing import Any

from benchmarks.figures import Series
from benchmarks.peers import Rank, mixed
from benchmarks.report import size_label
from benchmarks.timing import Contestant, alternate, check

AUTO = "horocache, auto"
_REPETITIONS = 40


def measure(
    rank: Rank, ops: list[str], sizes: list[int], overlap: int, table: str, layout: str, budget_s: float
) -> list[Series]:
    """Measure every operation and size.

    Args:
        rank: this rank.
        ops: operations of a tuning table.
        sizes: in bytes.
        overlap: operations of a set, as the table has them.
        table: path of the tuning table.
        layout: the label of the layout.
        budget_s: for the repetitions of one operation and size.
    """
    import horocache as hc
    from horocache.tuning.measure import backends_of_job
    from horocache.tuning.plan import Unit

    mixed(rank, tuning_table=table)
    backends = backends_of_job()
    # All backends between bars leave the choice to the selector, as mcr_dl's "auto" does.
    names = {AUTO: "|".join(one.name for one in backends)}
    names |= {name: name for one in backends for name in one.candidates()}
    series = []
    for unit in (Unit(op, size) for op in ops for size in sizes):
        contestants = []
        for impl, backend in names.items():
            made = _contestant(hc, unit, overlap, impl, backend)
            if _runs(hc, rank, made):
                contestants.append(made)
        wrong = check(rank.page, contestants)
        times = alternate(rank.page, contestants, repetitions=_REPETITIONS, budget_s=budget_s, warm_up=3, at_least=5)
        for impl, one in times.items():
            detail = {"op": unit.op, "bytes": unit.bytes, "layout": layout, "wrong": wrong[impl]}
            case = f"{unit.op}, {size_label(unit.bytes)}, {layout}"
            series.append(Series(case, impl, "us", one.seconds, cpu_seconds=one.cpu_seconds, detail=detail))
    return series


def _contestant(hc: Any, unit: Any, overlap: int, impl: str, backend: str) -> Contestant:
    from horocache.tuning.operations import Prepared, prepare

    names = [f"auto.{unit.op}.{unit.bytes}.{impl}.{number}" for number in range(overlap)]
    checked, timed = ([prepare(unit, i, values=values) for i in range(overlap)] for values in (True, False))

    def run_set(operations: list[Prepared]) -> list[Any]:
        handles = [one.start(name, backend) for one, name in zip(operations, names, strict=True)]
        results: list[Any] = hc.synchronize(handles)
        return results

    def run() -> None:
        run_set(timed)

    def wrong() -> int:
        return sum(one.wrong(result) for one, result in zip(checked, run_set(checked), strict=True))

    return Contestant(impl, run, inner=10 if unit.bytes < 1 << 16 else 1, wrong=wrong)


def _runs(hc: Any, rank: Rank, contestant: Contestant) -> bool:
    """True if the backend runs the operation; its refusal is the same on all ranks."""
    try:
        contestant.run()
    except hc.UnsupportedError:
        return False
    finally:
        rank.page.barrier()
    return True
