"""The plots of mixed backends, one PNG for each part but the table of backends, which ``horocache tune`` can draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import mixed_autotune as tuned
from benchmarks.cases.mixed_auto import AUTO
from benchmarks.figures import Figure
from benchmarks.mixed_report import best_fixed, by_case

_LIMIT = 1.1  # of auto's time, against the best fixed backend
_DPI = 130


def _overhead(figures: Sequence[Figure], path: Path) -> None:
    """Bars of the times of a call, one chart for each operation, backend and size."""
    bars(figures, path, "microseconds per call")


def _workloads(figures: Sequence[Figure], path: Path) -> None:
    """Bars of the times of a step, one chart for each workload and layout."""
    bars(figures, path, "milliseconds per step")


def bars(figures: Sequence[Figure], path: Path, label: str) -> None:
    """Draw a chart for each case: bars with the quartiles, in one colour for an implementation."""
    cases = by_case(figures)
    names = list(dict.fromkeys(figure.impl for figure in figures))
    columns = min(3, len(cases))
    rows = -(-len(cases) // columns)
    height = 0.8 + 0.24 * max(map(len, cases.values()))
    pyplot = pyplot_to_files()
    drawing, axes = pyplot.subplots(rows, columns, figsize=(5.6 * columns, height * rows), squeeze=False)
    for axis, (case, of_case) in zip(axes.flat, cases.items(), strict=False):
        values = [one.median for one in of_case.values()]
        low = [one.median - one.spread[0] for one in of_case.values()]
        high = [one.spread[1] - one.median for one in of_case.values()]
        axis.barh(
            list(of_case), values, xerr=[low, high], color=[f"C{names.index(name) % 10}" for name in of_case], alpha=0.8
        )
        axis.set_title(case, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.invert_yaxis()
    for axis in axes.flat[len(cases) :]:
        axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel(label, fontsize=8)
    save_drawing(pyplot, drawing, path)


def _auto(figures: Sequence[Figure], path: Path) -> None:
    """Auto's time against the best fixed backend, case by case, with the limit."""
    cases = by_case(figures)
    pyplot = pyplot_to_files()
    drawing, axis = pyplot.subplots(figsize=(8, 1.2 + 0.22 * len(cases)))
    ratios = [1 / of_case[AUTO].ratio[best_fixed(of_case).impl] for of_case in cases.values()]
    labels = [f"{case} ({best_fixed(of_case).impl})" for case, of_case in cases.items()]
    axis.barh(labels, ratios, color=["C0" if ratio <= _LIMIT else "C3" for ratio in ratios])
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.axvline(_LIMIT, color="C3", linestyle=":")
    axis.invert_yaxis()
    axis.tick_params(labelsize=7)
    axis.set_xlabel("time of 'auto' / time of the best fixed backend or algorithm (in brackets)")
    save_drawing(pyplot, drawing, path)


def _autotune(figures: Sequence[Figure], path: Path) -> None:
    """The points of each grid, sorted by time, and the finalists as lines."""
    models = list(dict.fromkeys(figure.detail["model"] for figure in figures))
    pyplot = pyplot_to_files()
    drawing, axes = pyplot.subplots(1, len(models), figsize=(6 * len(models), 4), squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        own = [figure for figure in figures if figure.detail["model"] == model]
        grid = sorted((one for one in own if one.impl == tuned.GRID), key=lambda one: one.median)
        places = range(len(grid))
        low = [one.median - one.spread[0] for one in grid]
        high = [one.spread[1] - one.median for one in grid]
        axis.errorbar(places, [one.median for one in grid], yerr=[low, high], fmt="o", color="gray", label="grid")
        for colour, one in enumerate(figure for figure in own if figure.impl != tuned.GRID):
            axis.axhline(one.median, color=f"C{colour}", label=one.impl)
        axis.set(title=model, xlabel="points of the grid, fastest first", ylabel="milliseconds per step")
        axis.legend(fontsize=8)
    save_drawing(pyplot, drawing, path)


def pyplot_to_files() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_drawing(pyplot: Any, drawing: Any, path: Path) -> None:
    drawing.tight_layout()
    drawing.savefig(path, dpi=_DPI)
    pyplot.close(drawing)


PLOTS: dict[str, Callable[[Sequence[Figure], Path], None]] = {
    "overhead": _overhead,
    "auto": _auto,
    "workloads": _workloads,
    "autotune": _autotune,
}
