"""The results of dependency graphs: tables and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cases.dag_store import DAEMON, OURS
from benchmarks.dag_model import DESIGNS, Design
from benchmarks.figures import Figure
from benchmarks.mixed_plots import pyplot_to_files, save_drawing
from benchmarks.mixed_report import by_case, spread_of
from benchmarks.report import Table, number

FUNNEL, DEPCHA = "Funnel, ascending", "DepCha, ascending"
PRIORITY = "negotiated, front layers first"
NEAR = 0.15  # of the model's duration
LEAST_GAIN = 1.6  # of DepCha over Funnel where copies cost as much as the wire


def tables(figures: Mapping[str, Sequence[Figure]]) -> list[Table]:
    """Return the tables of the parts that have results."""
    found = []
    if steps := figures.get("model"):
        found += [_steps(steps), _designs(steps), _overlap(steps)]
    if store := figures.get("store"):
        found.append(_store(store))
    return found


def _steps(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(figures).items():
        for name, one in of_case.items():
            expected = one.detail["expected_s"] * 1e3
            off = one.median / expected - 1
            verdict = "met" if abs(off) <= NEAR else "MISSED"
            rows.append(
                [case, name, number(expected), number(one.median), spread_of(one), f"{100 * off:+.1f} %", verdict]
            )
    columns = ["case", "design", "model, ms", "measured, ms", "quartiles", "difference", f"within {100 * NEAR:.0f} %"]
    note = "c is the time of a sum on the wire, d of a copy; a layer's passes take 4 and 8 ms, 20 layers."
    return Table("A step in each design, and by the model", columns, rows, note)


def _designs(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(figures).items():
        static = [of_case[each.name] for each in DESIGNS if each.lanes and each.name in of_case]
        best = min(static, key=lambda one: one.median)
        gain = of_case[FUNNEL].median / of_case[DEPCHA].median
        ours = of_case[PRIORITY].median / best.median
        rows.append([case, f"{gain:.2f}", best.impl, f"{ours:.3f}"])
    columns = ["case", "Funnel / DepCha", "best static design", f"{PRIORITY} / it"]
    return Table("The designs against each other", columns, rows, f"The goal of the first is {LEAST_GAIN} where d = c.")


def _overlap(figures: Sequence[Figure]) -> Table:
    """Of the shorter of computation and communication, the part that runs beside the other."""
    rows = []
    for case, of_case in by_case(figures).items():
        cells = []
        for one in of_case.values():
            computing, wires = one.detail["computing_s"] * 1e3, one.detail["layers"] * one.detail["wire_s"] * 1e3
            cells.append(f"{(computing + wires - one.median) / min(computing, wires):.2f}")
        rows.append([case, *cells])
    names = list(next(iter(by_case(figures).values())))
    return Table("Overlap of computation and wire", ["case", *names], rows, "1: the shorter one is hidden.")


def _store(figures: Sequence[Figure]) -> Table:
    rows = []
    for case, of_case in by_case(figures).items():
        ours, daemon = of_case[OURS], of_case[DAEMON]
        over = ours.median * (1 - ours.ratio[DAEMON])
        rows.append([case, number(ours.median), number(daemon.median), number(over), "met" if over <= 3 else "MISSED"])
    columns = ["case", f"{OURS}, us per key", f"{DAEMON}, us", "over it, us", "at most 3"]
    return Table("The cost of a store", columns, rows, "A step pushes all keys and then waits for them.")


def plot_model(figures: Sequence[Figure], path: Path) -> None:
    """Bars of each design's step, with the model's durations as marks."""
    cases = by_case(figures)
    pyplot = pyplot_to_files()
    drawing, axes = pyplot.subplots(1, len(cases), figsize=(4.2 * len(cases), 3.2), sharey=True, squeeze=False)
    for axis, (case, of_case) in zip(axes[0], cases.items(), strict=True):
        names = list(of_case)
        axis.barh(names, [one.median for one in of_case.values()], color="C0", alpha=0.8)
        axis.plot([one.detail["expected_s"] * 1e3 for one in of_case.values()], names, "k|", markersize=12)
        axis.set_title(case, fontsize=9)
        axis.set_xlabel("ms per step (mark: model)", fontsize=8)
        axis.tick_params(labelsize=7)
    axes[0][0].invert_yaxis()
    save_drawing(pyplot, drawing, path)


def order_of(case: Mapping[str, Figure], designs: Sequence[Design]) -> list[str]:
    """Return the names of designs, the slowest first."""
    return sorted((each.name for each in designs if each.name in case), key=lambda name: -case[name].median)
