"""The paper's experiment: what a step of agreement costs, by strategy, cache, ranks and tensors.

All controllers run in one thread, one after the other. The times are the processor time of one rank's calls: the time
that this rank would spend on any number of cores, without the cost of a network. A cell that would take longer than the
rest of the time budget is skipped, and the table says so.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import machine
from benchmarks.report import Table, number
from horocache import _testing

STRATEGIES = ("coordinator", "tree", "bits by messages", "bits", "leaders")
RANKS = (2, 8, 64, 256, 1024)
TENSORS = (161, 1000)
_STEPS = 5  # measured steps of a cell
_FEW_STEPS = 2  # measured steps if a step handles more than _MANY_RECORDS records
_MANY_RECORDS = 50_000


@dataclass(frozen=True)
class Cell:
    """One combination of settings."""

    strategy: str
    cache: bool
    ranks: int
    tensors: int

    @property
    def name(self) -> str:
        return f"{self.strategy}, cache {'on' if self.cache else 'off'}"


@dataclass(frozen=True)
class Cost:
    """The results of a cell, per step in the steady state."""

    coordinator_us: float  # processor time of rank 0
    worker_us: float  # processor time of the median other rank
    first_step_us: float  # processor time of rank 0, when nothing is cached
    messages: float
    bytes: float
    rounds: float
    wall_s: float  # duration of the measurement


Figures = dict[Cell, Cost | None]  # None: skipped


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write JSONL and draw the plot; return 0."""
    options = _parse(arguments)
    about = machine.about() | {"time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    figures = measure(options.ranks, options.tensors, options.budget_s)
    options.output.mkdir(parents=True, exist_ok=True)
    _write(options.output / "control.jsonl", figures, about)
    for tensors in options.tensors:
        print(table(figures, tensors))
    print(growth(figures))
    plot(figures, options.output / "control")
    print(f"\nwritten: control.jsonl, control.png and control.svg in {options.output}")
    return 0


def measure(ranks: Iterable[int], tensors: Iterable[int], budget_s: float) -> Figures:
    """Measure every cell, small cells first, until the budget is used up."""
    figures: Figures = {}
    end = time.monotonic() + budget_s
    cells = itertools.product(sorted(ranks), sorted(tensors), (True, False), STRATEGIES)
    for count, amount, cache, strategy in cells:
        cell = Cell(strategy, cache, count, amount)
        if _expected_s(cell, figures) > end - time.monotonic():
            figures[cell] = None
            continue
        # With the cache off, every step moves one record per rank and tensor.
        many = not cache and count * amount > _MANY_RECORDS
        result = _testing.bench_control(strategy, count, amount, cache, _FEW_STEPS if many else _STEPS)
        figures[cell] = Cost(**result)
    return figures


def _expected_s(cell: Cell, figures: Figures) -> float:
    """Estimate a cell's seconds from the largest smaller job: the work grows a bit faster than the number of ranks."""
    known = [
        (other.ranks * other.tensors, other, cost)
        for other, cost in figures.items()
        if (other.strategy, other.cache) == (cell.strategy, cell.cache) and other.ranks < cell.ranks
    ]
    if not known:
        return 0.0
    if any(cost is None for _, _, cost in known):
        return float("inf")
    _, other, cost = max(known, key=lambda entry: entry[0])
    assert cost is not None
    return 1.5 * cost.wall_s * (cell.ranks / other.ranks) * (cell.tensors / other.tensors)


def table(figures: Figures, tensors: int) -> Table:
    """One row per strategy, cache and ranks."""
    columns = [
        "strategy",
        "cache",
        "ranks",
        "rank 0, us",
        "worker, us",
        "rounds",
        "messages",
        "bytes",
        "first step, us",
    ]
    rows = []
    for cell, cost in sorted(figures.items(), key=lambda entry: _order(entry[0])):
        if cell.tensors != tensors:
            continue
        head = [cell.strategy, "on" if cell.cache else "off", str(cell.ranks)]
        if cost is None:
            rows.append([*head, "skipped", "", "", "", "", ""])
            continue
        values = (cost.coordinator_us, cost.worker_us, cost.rounds, cost.messages, cost.bytes, cost.first_step_us)
        rows.append([*head, *map(number, values)])
    note = (
        "Per step in the steady state. Processor time of rank 0 and of the median other rank; messages and bytes "
        "of all ranks. 'bits' reads words in shared memory: one publication counts as one message."
    )
    return Table(f"Agreement on {tensors} tensors", columns, rows, note)


def growth(figures: Figures) -> Table:
    """Show how rank 0's time grows from the smallest to the largest number of ranks that was measured."""
    rows = []
    for key, group in itertools.groupby(
        sorted(figures, key=_order), key=lambda cell: (cell.tensors, cell.strategy, cell.cache)
    ):
        known = [(cell.ranks, cost) for cell in group if (cost := figures[cell]) is not None]
        if len(known) < 2:
            continue
        (low, first), (high, last) = known[0], known[-1]
        times = last.coordinator_us / first.coordinator_us
        rows.append(
            [key[1], "on" if key[2] else "off", str(key[0]), f"{low} to {high}", f"{times:,.1f}", f"{high / low:,.0f}"]
        )
    columns = ["strategy", "cache", "tensors", "ranks", "rank 0's time grows by", "ranks grow by"]
    return Table("What grows with the number of ranks", columns, rows)


def _order(cell: Cell) -> tuple[int, int, bool, int]:
    return cell.tensors, STRATEGIES.index(cell.strategy), cell.cache, cell.ranks


def plot(figures: Figures, path: Path) -> None:
    """Draw rank 0's time over the number of ranks; both axes are logarithmic, so a straight line is a power of N."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "horocache"  # equal figures give equal files
    from matplotlib import pyplot

    tensors = sorted({cell.tensors for cell in figures})
    drawing, axes = pyplot.subplots(1, len(tensors), figsize=(6.5 * len(tensors), 5), sharey=True, squeeze=False)
    for axis, amount in zip(axes[0], tensors, strict=True):
        for color, strategy in enumerate(STRATEGIES):
            for cache in (False, True):
                points = [
                    (cell.ranks, cost.coordinator_us)
                    for cell, cost in sorted(figures.items(), key=lambda entry: entry[0].ranks)
                    if cost is not None and (cell.strategy, cell.cache, cell.tensors) == (strategy, cache, amount)
                ]
                if points:
                    style = "-" if cache else ":"
                    label = Cell(strategy, cache, 0, 0).name
                    axis.plot(*zip(*points, strict=True), style, marker="o", color=f"C{color}", label=label)
        axis.set(xscale="log", yscale="log", xlabel="ranks", title=f"{amount} tensors")
        axis.set_xticks(RANKS, [str(count) for count in RANKS])
        axis.grid(True, which="major", alpha=0.3)
    axes[0][0].set_ylabel("processor time of rank 0 per step, microseconds")
    axes[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    drawing.tight_layout()
    for suffix in (".png", ".svg"):
        drawing.savefig(path.with_suffix(suffix), dpi=130, metadata={"Date": None} if suffix == ".svg" else None)
    pyplot.close(drawing)


def _write(path: Path, figures: Figures, about: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for cell, cost in figures.items():
            line = {"bench": "control", **asdict(cell), "skipped": cost is None}
            file.write(json.dumps(line | (asdict(cost) if cost else {}) | about) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a step of agreement costs, by strategy, cache, ranks, tensors.")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, metavar="N")
    parser.add_argument("--tensors", type=int, nargs="+", default=TENSORS, metavar="T")
    parser.add_argument("--budget-s", type=float, default=270.0, help="cells that would take longer are skipped")
    parser.add_argument("--output", type=Path, default=Path("results"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
