"""The results of the paper's grid: figures with ratios to their neighbours in the grid, and the report's tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.backward import ALONE
from benchmarks.cases.grid import CACHES, MODES, groups_label
from benchmarks.figures import Figure, Series, make_figure, quartiles
from benchmarks.report import Table, number

BENCH = "paper"
_UNGROUPED, _UNCACHED, _TICK, _ALONE = groups_label(0), "cache off", "tick", groups_label(ALONE)
_SIZES = "fused_size_log2."
# Columns of the histogram: label, and N for sizes of at most 2^N bytes.
_BINS = [("<= 4 KiB", 12), ("<= 64 KiB", 16), ("<= 1 MiB", 20), ("<= 16 MiB", 24), ("> 16 MiB", 64)]
_AXES = ("framework", "plane", "cache", "mode", "groups")
Key = tuple[Any, ...]


def to_figures(ranks: int, cells: Sequence[Series]) -> list[Figure]:
    """Return one figure per cell, with how many times as fast it is as each of its neighbours in the grid.

    Ratios are medians over the pairs of the same repetition; their quartiles are in ``detail``.
    """
    by_key = {_key(cell.detail): cell for cell in cells}
    figures = []
    for cell in cells:
        pairs = {
            name: [theirs / ours for ours, theirs in zip(cell.values, by_key[key].values, strict=True)]
            for name, key in _neighbours(cell.detail).items()
            if key in by_key
        }
        spread = {name: [float(f"{q:.4g}") for q in quartiles(ratios)] for name, ratios in pairs.items()}
        detail = {**cell.detail, "ratio_quartiles": spread}
        ratio = {name: statistics.median(ratios) for name, ratios in pairs.items()}
        figures.append(make_figure(BENCH, ranks, replace(cell, detail=detail), ratio))
    return figures


def _key(detail: Mapping[str, Any], **changes: Any) -> Key:
    return tuple({**detail, **changes}[axis] for axis in _AXES)


def _neighbours(detail: Mapping[str, Any]) -> dict[str, Key]:
    """Return the cells to compare a cell with: no groups, no cache, the tick, no communication."""
    found: dict[str, Key] = {}
    if detail["groups"] == ALONE:
        return found
    found[_ALONE] = _key(detail, groups=ALONE)
    if detail["groups"] > 0:
        found[_UNGROUPED] = _key(detail, groups=0)
    if detail["cache"] == "on":
        found[_UNCACHED] = _key(detail, cache="off")
    if detail["mode"] == "event":
        found[_TICK] = _key(detail, mode="tick")
    return found


def verdict(figure: Figure) -> str:
    """Return whether grouping ``loses``, ``gains`` or ``ties``; it ties if the quartiles lie on both sides of 1."""
    low, high = figure.detail["ratio_quartiles"][_UNGROUPED]
    return "loses" if high < 1.0 else "gains" if low > 1.0 else "ties"


def tables(figures: Sequence[Figure]) -> list[Table]:
    """Return where grouping loses, then the paper's figures."""
    ran = [figure for figure in figures if figure.detail["groups"] != ALONE]
    if not ran:
        return []
    return [_losses(ran), _grouping(ran), _against(ran, _UNCACHED), _against(ran, _TICK), *_sizes(ran)]


def _grouped(figures: Iterable[Figure]) -> list[Figure]:
    return [figure for figure in figures if _UNGROUPED in figure.ratio]


def _losses(figures: Sequence[Figure]) -> Table:
    """List the cells that lose, worst first."""
    grouped = _grouped(figures)
    found = sorted((f for f in grouped if verdict(f) == "loses"), key=lambda f: f.ratio[_UNGROUPED])
    ungrouped = {_key(figure.detail): figure for figure in figures if figure.detail["groups"] == 0}
    rows = []
    for figure in found:
        base = ungrouped[_key(figure.detail, groups=0)]
        low, high = figure.detail["ratio_quartiles"][_UNGROUPED]
        rows.append(
            [
                f"{figure.case}, {figure.impl}",
                f"{100 * (1 - figure.ratio[_UNGROUPED]):.0f} %",
                f"{low:.2f} .. {high:.2f}",
                number(base.median),
                number(figure.median),
                _buffers(base),
                _buffers(figure),
            ]
        )
    counts = {word: sum(verdict(figure) == word for figure in grouped) for word in ("loses", "ties", "gains")}
    note = (
        f"Of {len(grouped)} cells with groups, {counts['loses']} lose, {counts['ties']} tie and {counts['gains']} gain "
        "against 0 groups. A cell loses if at least three quarters of the pairs of neighbouring steps are slower; 'by' "
        "is how much of the speed is lost, the median over the pairs."
    )
    columns = ["cell", "loses by", "x 0 groups, quartiles", "ms at 0", "ms", "buffers at 0", "buffers"]
    return Table("Where grouping loses", columns, rows, note)


def _buffers(figure: Figure) -> str:
    # Not fused_operations: it is counted after the results are available, possibly during the next step.
    return f"{sum(histogram(figure.counters)):.1f}"


def _grouping(figures: Sequence[Figure]) -> Table:
    """Figure 8: one row per line of the grid, whose cells differ only in the number of groups."""
    counts = sorted({figure.detail["groups"] for figure in figures} - {0})
    columns = ["cell", "ms at 0 groups", "not hidden, ms", *(f"x at {groups_label(count)}" for count in counts)]
    by_key = {_key(figure.detail): figure for figure in figures}
    rows = []
    for figure in figures:
        if figure.detail["groups"] != 0:
            continue
        line = [by_key.get(_key(figure.detail, groups=count)) for count in counts]
        rows.append([figure.case, number(figure.median), _exposed(figure), *(_marked(other) for other in line)])
    note = (
        "Figure 8 of the paper. x: how many times as fast as with 0 groups; - loses, + gains, = ties, by the quartiles "
        "of the pairs. Not hidden: what the step takes longer than without communication."
    )
    return Table("Grouping: speed against 0 groups", columns, rows, note)


def _exposed(figure: Figure) -> str:
    return number(figure.median * (1.0 - figure.ratio[_ALONE])) if _ALONE in figure.ratio else ""


def _marked(figure: Figure | None) -> str:
    if figure is None or _UNGROUPED not in figure.ratio:
        return ""
    mark = {"loses": "-", "gains": "+", "ties": "="}[verdict(figure)]
    return f"{figure.ratio[_UNGROUPED]:.2f} {mark}"


def _against(figures: Sequence[Figure], peer: str) -> Table:
    """Figure 7, and the same table for the cycle modes."""
    compared = [figure for figure in figures if peer in figure.ratio]
    counts = sorted({figure.detail["groups"] for figure in compared})
    rows: dict[str, dict[int, str]] = {}
    for figure in compared:
        low, high = figure.detail["ratio_quartiles"][peer]
        cell = f"{figure.ratio[peer]:.2f} ({low:.2f} .. {high:.2f})"
        rows.setdefault(figure.case, {})[figure.detail["groups"]] = cell
    title = (
        "Caching: speed against the cache off" if peer == _UNCACHED else "Events: speed against rounds at a fixed tick"
    )
    note = "Figure 7 of the paper, at one scale. " if peer == _UNCACHED else ""
    note += "Median and quartiles of the pairs, which are some seconds apart: the daemon starts anew in between."
    columns = ["cell", *(f"x at {groups_label(count)}" for count in counts)]
    return Table(title, columns, [[case, *(row.get(c, "") for c in counts)] for case, row in rows.items()], note)


def _sizes(figures: Sequence[Figure]) -> Iterator[Table]:
    """Figure 2: one table per framework and plane."""
    columns = ["cache", "mode", "groups", "buffers per step", *(label for label, _ in _BINS), "rounds", "control bytes"]
    for title in dict.fromkeys((figure.detail["framework"], figure.detail["plane"]) for figure in figures):
        own = [figure for figure in figures if (figure.detail["framework"], figure.detail["plane"]) == title]
        order = {(cache, mode): i for i, (cache, mode) in enumerate((c, m) for c in CACHES for m in MODES)}
        own.sort(key=lambda f: (order[f.detail["cache"], f.detail["mode"]], f.detail["groups"]))
        rows = [
            [
                figure.detail["cache"],
                figure.detail["mode"],
                str(figure.detail["groups"]),
                _buffers(figure),
                *(f"{count:.1f}" for count in histogram(figure.counters)),
                number(figure.counters.get("rounds", 0.0)),
                number(figure.counters.get("control_bytes", 0.0)),
            ]
            for figure in own
        ]
        note = "Figure 2 of the paper: fused buffers per step by their size; the JSONL file has every power of two."
        yield Table(f"Fused buffers: {', '.join(title)}", columns, rows, note)


def histogram(counters: Mapping[str, float]) -> list[float]:
    """Return the buffers per step in each column of the table, from the counters by powers of two."""
    counts = [0.0] * len(_BINS)
    for name, count in counters.items():
        if name.startswith(_SIZES):
            power = int(name.removeprefix(_SIZES))
            counts[next(i for i, (_, most) in enumerate(_BINS) if power <= most)] += count
    return counts
