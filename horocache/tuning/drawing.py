"""The drawing of a tuning table: which candidate wins where, one chart for each operation."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from typing import Any

from horocache.base.usage import UsageError
from horocache.tuning.lookup import SIZES_DIFFER, World, bands_of
from horocache.tuning.table import Candidate, Layout, Size, Table, canonical

_CELL_INCHES = (0.95, 0.42)  # of one size and one layout
_MARGIN_INCHES = (2.6, 1.1)
_LEGEND_INCHES = 0.8
_DPI = 120
_MOST_PIXELS = 30e6  # of a drawing; a larger one has fewer dots per inch
_ALPHA = 0.6
_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def size_text(num_bytes: int) -> str:
    """Return a size as the command line takes it, such as ``64K``."""
    return next((f"{num_bytes // unit}{letter}" for unit, letter in _UNITS if num_bytes % unit == 0), str(num_bytes))


def fastest(op: str, layout: Layout, size: Size) -> tuple[Candidate, Candidate | None] | None:
    """Return the candidate that runs a size, by the rules, and the fastest of the others; None if none can.

    Args:
        op: the operation.
        layout: the layout that has the size.
        size: one of its sizes.
    """
    bands = bands_of(op, layout)
    if not bands:
        return None
    band = next(band for band in reversed(bands) if size.bytes >= band.low)
    timed = {one.name: one for one in size.candidates if one.median_us is not None and one.name in band.candidates}
    if not timed:
        return None
    first = next(timed[name] for name in band.candidates if name in timed)
    others = [one for one in timed.values() if one is not first]
    return first, min(others, key=lambda one: one.median_us or 0.0, default=None)


def require_matplotlib() -> None:
    """Raise UsageError if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("drawing needs matplotlib: pip install 'horocache[tune]'", 1)


def draw(table: Table, path: str | os.PathLike[str]) -> None:
    """Draw a table into a PNG file.

    Raises:
        UsageError: matplotlib is not installed, or the table has no times. OSError: the file cannot be written.
    """
    require_matplotlib()
    import matplotlib as mpl  # noqa: PLC0415  (an optional library)

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

    table = canonical(table)
    charts = [(each.op, each.layouts) for each in table.operations if _names(each.op, each.layouts)]
    if not charts:
        raise UsageError("the table has no times to draw", 1)
    names = sorted(set().union(*(_names(op, layouts) for op, layouts in charts)))
    palette = mpl.colormaps["tab10" if len(names) <= 10 else "tab20"]
    colours = {name: palette(i % palette.N) for i, name in enumerate(names)}
    columns = max(len(_sizes(layouts)) for _, layouts in charts)
    heights = [_MARGIN_INCHES[1] + _CELL_INCHES[1] * len(layouts) for _, layouts in charts]
    width, height = _MARGIN_INCHES[0] + _CELL_INCHES[0] * columns, sum(heights) + _LEGEND_INCHES
    figure, axes = pyplot.subplots(
        len(charts),
        1,
        figsize=(width, height),
        squeeze=False,
        layout="constrained",
        height_ratios=heights,
    )
    winners: set[str] = set()
    for (op, layouts), axis in zip(charts, axes[:, 0], strict=True):
        winners |= _draw_operation(axis, op, layouts, colours)
    title = f"Which candidate wins where: {table.overlap} overlapped operations, horocache {table.horocache[:40]}"
    figure.suptitle(title, parse_math=False)
    patches = [Patch(color=colours[name], alpha=_ALPHA, label=name) for name in sorted(winners)]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(4, len(patches)), frameon=False)
    try:
        figure.savefig(path, dpi=min(_DPI, math.sqrt(_MOST_PIXELS / (width * height))), format="png")
    finally:
        pyplot.close(figure)


def _names(op: str, layouts: Sequence[Layout]) -> set[str]:
    return {name for one in layouts for band in bands_of(op, one) for name in band.candidates}


def _sizes(layouts: Sequence[Layout]) -> list[int]:
    return sorted({size.bytes for one in layouts for size in one.sizes})


def _draw_operation(axis: Any, op: str, layouts: Sequence[Layout], colours: dict[str, Any]) -> set[str]:
    """Draw a cell for each size and layout; return the names of the winners."""
    sizes = _sizes(layouts)
    winners = set()
    for row, layout in enumerate(layouts):
        for size in layout.sizes:
            found = fastest(op, layout, size)
            if found is None:
                continue
            first, second = found
            winners.add(first.name)
            column = sizes.index(size.bytes)
            axis.add_patch(_cell(column, row, colours[first.name]))
            ratio = "" if second is None else f"\n{(second.median_us or 0) / (first.median_us or 1):.2f}x"
            axis.text(column, row, f"{first.median_us:.4g} us{ratio}", ha="center", va="center", fontsize=7)
    axis.set_xlim(-0.5, len(sizes) - 0.5)
    axis.set_ylim(len(layouts) - 0.5, -0.5)
    axis.set_xticks(range(len(sizes)), [size_text(size) for size in sizes])
    axis.set_yticks(range(len(layouts)), [str(World(one.ranks, one.hosts)) for one in layouts])
    one_order = ", the same candidate for all sizes" if op in SIZES_DIFFER else ""
    axis.set_title(f"{op}: time of the winner, and of the next one relative to it{one_order}", fontsize=9, loc="left")
    return winners


def _cell(column: int, row: int, colour: Any) -> Any:
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    return Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white", alpha=_ALPHA)
