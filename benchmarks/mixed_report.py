"""The results of mixed backends: figures with ratios to the others of their case, and the report's tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.cases import mixed_autotune as tuned
from benchmarks.cases import mixed_workloads as ways
from benchmarks.cases.mixed_auto import AUTO
from benchmarks.cases.mixed_overhead import DAEMON, OURS, RAW
from benchmarks.figures import Figure, Series, make_figure, paired_ratio
from benchmarks.report import Table, number
from benchmarks.workloads import WORKLOADS
from horocache.tuning.drawing import fastest, size_text
from horocache.tuning.lookup import World
from horocache.tuning.table import Layout, Size, canonical
from horocache.tuning.table import Table as TuningTable


def compared(bench: str, ranks: int, series: Sequence[Series]) -> list[Figure]:
    """Return a figure for each series, with how many times as fast it is as each other one of its case.

    Ratios are medians over the pairs of the same repetition.
    """
    return [
        make_figure(
            bench,
            ranks,
            one,
            {
                other.impl: paired_ratio("s", one.values, other.values)
                for other in series
                if other.case == one.case and other.impl != one.impl
            },
        )
        for one in series
    ]


def tables(figures: Mapping[str, Sequence[Figure]], table: TuningTable | None) -> list[Table]:
    """Return the tables of the parts that have results."""
    found: list[Table] = []
    if overhead := figures.get("overhead"):
        found.append(_overhead(overhead))
    if table is not None:
        found += _winners(table)
    if auto := figures.get("auto"):
        found.append(_auto(auto))
    if workloads := figures.get("workloads"):
        found += [_times(workloads), _gains(workloads), _others(workloads)]
    if autotune := figures.get("autotune"):
        found.append(_autotune(autotune))
    return found


def by_case(figures: Iterable[Figure]) -> dict[str, dict[str, Figure]]:
    """Return the figures by case and implementation, in their order."""
    found: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        found.setdefault(figure.case, {})[figure.impl] = figure
    return found


def best_single(case: Mapping[str, Figure]) -> Figure:
    """Return the fastest single backend of a workload."""
    return min((one for name, one in case.items() if name.endswith(ways.ALONE)), key=lambda one: one.median)


def best_fixed(case: Mapping[str, Figure]) -> Figure:
    """Return the fixed backend or algorithm of an operation that auto is slowest against."""
    return min((one for name, one in case.items() if name != AUTO), key=lambda one: case[AUTO].ratio[one.impl])


def spread_of(figure: Figure) -> str:
    return f"{number(figure.spread[0])} .. {number(figure.spread[1])}"


def _gain(figure: Figure, over: str) -> str:
    """The gain in speed over another implementation, in percent; empty for itself."""
    return f"{100 * (figure.ratio[over] - 1):+.0f} %" if over in figure.ratio else ""


def _overhead(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(figures).items():
        ours, daemon = of_case[OURS], of_case[DAEMON]
        raw = next((of_case[name] for name in RAW.values() if name in of_case), None)
        row = [case, number(ours.median), spread_of(ours), number(daemon.median), spread_of(daemon)]
        row += [number(ours.median * (1 - ours.ratio[DAEMON])), _percent(ours, daemon)]
        row += ["", "", "", ""] if raw is None else [raw.impl, number(raw.median), spread_of(raw), _percent(ours, raw)]
        rows.append([*row, str(ours.repetitions)])
    columns = ["case", "mcr_dl, us", "quartiles", "daemon, us", "quartiles", "over it, us", "%"]
    columns += ["library", "us", "quartiles", "over it, %", "blocks"]
    note = "Blocking calls in a loop; what mcr_dl takes longer is the median over the pairs of neighbouring blocks."
    return Table("Overhead of mcr_dl over the daemon's own call, and over the library itself", columns, rows, note)


def _percent(ours: Figure, other: Figure) -> str:
    return f"{100 * (1 / ours.ratio[other.impl] - 1):+.1f}"


def _winners(table: TuningTable) -> Iterator[Table]:
    """MCR-DL's Table II as this machine has it: one table per layout."""
    worlds: dict[World, dict[str, dict[int, str]]] = {}
    for measurements in canonical(table).operations:
        for layout in measurements.layouts:
            cells = worlds.setdefault(World(layout.ranks, layout.hosts), {}).setdefault(measurements.op, {})
            cells.update({size.bytes: _winner(measurements.op, layout, size) for size in layout.sizes})
    note = (
        f"The fastest of all candidates for sets of {table.overlap} overlapped operations. Where 'auto' takes another "
        "one, as operations whose sizes differ from rank to rank have one backend for all sizes, it stands beside it."
    )
    for world, ops in worlds.items():
        sizes = sorted({size for cells in ops.values() for size in cells})
        rows = [[op, *(cells.get(size, "") for size in sizes)] for op, cells in ops.items()]
        yield Table(f"The fastest backend: {world}", ["operation", *map(size_text, sizes)], rows, note)


def _winner(op: str, layout: Layout, size: Size) -> str:
    timed = [one for one in size.candidates if one.median_us is not None and not one.wrong]
    if not timed:
        return "-"
    chosen = fastest(op, layout, size)
    other = "" if chosen is None or chosen[0].name == timed[0].name else f" (auto: {chosen[0].name})"
    return timed[0].name + other


def _auto(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(figures).items():
        auto, best = of_case[AUTO], best_fixed(of_case)
        ratio = 1 / auto.ratio[best.impl]
        rows.append([case, number(auto.median), spread_of(auto), best.impl, number(best.median), f"{ratio:.2f}"])
    ratios = sorted(float(row[-1]) for row in rows)
    over = sum(ratio > 1.1 for ratio in ratios)
    note = (
        f"Of {len(rows)} cases, {over} take more than 1.10 times the best fixed one; the worst takes {ratios[-1]:.2f}."
    )
    columns = ["case", "auto, us", "quartiles", "best fixed", "us", "auto / best"]
    return Table("'auto' by the table against the best fixed backend or algorithm", columns, rows, note)


def _times(figures: Sequence[Figure]) -> Table:
    rows = [
        [
            figure.case,
            figure.impl,
            number(figure.median),
            spread_of(figure),
            number(figure.best),
            str(figure.repetitions),
        ]
        for figure in figures
    ]
    columns = ["case", "implementation", "ms", "quartiles", "best", "repetitions"]
    note = (
        "Communication of one training step, without computation. Horovod's plan: rounds at a fixed tick, all "
        "operations by one library. For dense gradients torch.distributed reduces buckets of 25 MiB, as "
        "DistributedDataParallel does."
    )
    return Table("Workloads", columns, rows, note)


def _gains(figures: Sequence[Figure]) -> Table:
    """The table of workloads, with the paper's gains beside ours."""
    rows = []
    for case, of_case in by_case(figures).items():
        single = best_single(of_case)
        workload = WORKLOADS[single.detail["workload"]]
        mixes = [of_case[name] for name in (ways.COARSE, ways.FINE, ways.AUTO)]
        gains = [_gain(mix, single.impl) for mix in mixes]
        rows.append([case, single.impl, number(single.median), *gains, f"{workload.gain:+.0f} %", workload.of])
    columns = ["workload", "best single backend", "ms", "by op", "by op and size", "auto"]
    note = (
        "Gain in speed of mixing over the best single backend, the median over the pairs of the same repetition. By "
        "op: a backend for each operation. By op and size: the table's fastest candidate. Auto: the table's choice."
    )
    return Table("Gain of the mix over the best single backend", [*columns, "the paper's", "with"], rows, note)


def _others(figures: Sequence[Figure]) -> Table:
    peers = (ways.GLOO, ways.MPI, ways.MPI_ASYNC, ways.TICK)
    rows = [
        [case, number(of_case[ways.AUTO].median), *(_gain(of_case[ways.AUTO], peer) for peer in peers)]
        for case, of_case in by_case(figures).items()
    ]
    note = "Gain in speed of 'auto'; the median over the pairs of the same repetition."
    return Table("Gain over other libraries", ["workload", "auto, ms", *peers], rows, note)


def _autotune(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(one for one in figures if one.impl != tuned.GRID).items():
        ours, best, default = (of_case[name] for name in (tuned.TUNED, tuned.BEST, tuned.DEFAULT))
        cost = f"{ours.detail['tuning_steps']} steps, {ours.detail['tuning_s']:.0f} s"
        points = sum(one.impl == tuned.GRID and one.detail["model"] == ours.detail["model"] for one in figures)
        settings = ", ".join(f"{name}={value}" for name, value in ours.detail["point"].items())
        row = [case, number(default.median), number(best.median), str(points), number(ours.median)]
        rows.append([*row, f"{ours.ratio[tuned.BEST]:.3f}", f"{ours.ratio[tuned.DEFAULT]:.3f}", cost, settings])
    said = [line for one in figures if one.impl == tuned.TUNED for line in one.detail["said"]]
    columns = [
        "workload",
        "default, ms",
        "best of the grid, ms",
        "points",
        "autotuned, ms",
        "x the best",
        "x the default",
    ]
    title = "Autotune against an exhaustive grid"
    return Table(title, [*columns, "cost", "settings"], rows, "Autotune said: " + " | ".join(said))
