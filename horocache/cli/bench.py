"""``horocache bench``: measures this machine, in the columns of nccl-tests. Checks the results before it takes times.

Started by hand, it starts its own ranks with horocacherun; started by a launcher, it is one of the ranks.
"""

import json
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import horocache as hc
from horocache.cli import bench_control
from horocache.launch.cli import main as horocacherun

_HEADINGS = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
_UNITS = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
_LAYOUT = "{:>12} {:>12} {:>8} {:>6} {:>5} {:>10} {:>8} {:>8} {:>7}"
_MOST_SECONDS = 2.0  # for one size; large sizes are repeated less often
_REDUCE_OPS = {"sum": hc.Sum, "avg": hc.Average, "prod": hc.Product, "min": hc.Min, "max": hc.Max}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    size: int
    count: int
    type: str
    redop: str
    root: int
    time_us: float
    algbw: float
    busbw: float
    wrong: int

    def __str__(self) -> str:
        numbers = (f"{self.time_us:.1f}", f"{self.algbw:.3f}", f"{self.busbw:.3f}", self.wrong)
        return _LAYOUT.format(self.size, self.count, self.type, self.redop, self.root, *numbers)


def run(options: Namespace, arguments: list[str]) -> int:
    """Run as a rank of the measurement, or, without a launcher, start the ranks with the same ``arguments``."""
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    if _core.identity()["source"] == "none":
        command = [sys.executable, "-m", "horocache.tools", *arguments]
        return horocacherun(["-np", str(options.np), "--no-prefix", *command])
    if options.what == "control":
        return bench_control.run(options)
    hc.init()
    try:
        return _collective(options, _core.__version__)
    finally:
        hc.shutdown()


def _collective(options: Namespace, version: str) -> int:
    operation: Allreduce | Alltoall = Allreduce(options) if options.what == "allreduce" else Alltoall(options)
    first = hc.rank() == 0
    if first and not options.json:
        sys.stdout.write(f"# {options.what}, {hc.size()} ranks, horocache {version}\n{_heading()}\n")
    rows = []
    for size in _sizes(options):
        rows.append(_measure(operation, size, options))
        if first:
            facts = {"op": options.what, "ranks": hc.size(), **asdict(rows[-1])}
            sys.stdout.write((json.dumps(facts) if options.json else str(rows[-1])) + "\n")
            sys.stdout.flush()
    wrong = sum(row.wrong for row in rows)
    if first and not options.json:
        mean = statistics.fmean(row.busbw for row in rows) if rows else 0.0
        sys.stdout.write(f"# wrong values: {wrong}; mean bus bandwidth: {mean:.3f} GB/s\n")
    return 1 if wrong else 0


def _heading() -> str:
    return "\n".join("#" + _LAYOUT.format(*texts)[1:] for texts in (_HEADINGS, _UNITS))


def _sizes(options: Namespace) -> Iterator[int]:
    size = options.begin
    while size <= options.end:
        yield size
        size = size * options.factor if options.factor > 1 else options.end + 1


class Allreduce:
    """Blocking allreduce in place. Small integers are exact in every type, so any difference is a wrong value."""

    redop: str

    def __init__(self, options: Namespace) -> None:
        self.dtype: np.dtype[Any] = np.dtype(options.dtype)
        self.redop = options.op
        self._op = _REDUCE_OPS[options.op]

    def elements(self, size: int) -> int:
        """Return the number of elements of a buffer of about ``size`` bytes."""
        return max(1, size // self.dtype.itemsize)

    def wrong(self, count: int) -> int:
        """Run the operation once on known values and return the number of wrong elements."""
        pattern = np.arange(count) % 3
        mine = (pattern + hc.rank()).astype(self.dtype)
        parts = [(pattern + rank).astype(np.float64) for rank in range(hc.size())]
        fold: dict[str, Callable[[Array], Array]] = {
            "sum": lambda all_ranks: all_ranks.sum(axis=0),
            "avg": lambda all_ranks: all_ranks.mean(axis=0),
            "prod": lambda all_ranks: all_ranks.prod(axis=0),
            "min": lambda all_ranks: all_ranks.min(axis=0),
            "max": lambda all_ranks: all_ranks.max(axis=0),
        }
        # An average of integers is truncated toward zero, which the conversion does as well.
        expected = fold[self.redop](np.stack(parts)).astype(self.dtype)
        got = hc.allreduce_(mine, op=self._op, name=f"check.{count}")
        if self.redop == "avg" and self.dtype.kind == "f":
            # The scaled sum is rounded once, so it may differ from mean() by one unit in the last place.
            return int(np.count_nonzero(np.abs(got - expected) > np.spacing(np.abs(expected))))
        return int(np.count_nonzero(got != expected))

    def prepare(self, count: int) -> Callable[[], object]:
        """Return the operation to time, on a buffer of ``count`` elements."""
        data = np.zeros(count, self.dtype)
        data.fill(1 if self.redop == "prod" else 0)
        name = f"bench.{count}"
        return lambda: hc.allreduce_(data, op=self._op, name=name)

    def bus_factor(self) -> float:
        """Return the bytes on the bus for each byte of the buffer, as nccl-tests count them."""
        return 2 * (hc.size() - 1) / hc.size()


class Alltoall:
    """Blocking alltoall of equal shares; the size is that of a rank's whole buffer."""

    redop = "none"

    def __init__(self, options: Namespace) -> None:
        self.dtype: np.dtype[Any] = np.dtype(options.dtype)

    def elements(self, size: int) -> int:
        """Return the number of elements of a buffer of about ``size`` bytes, a multiple of the number of ranks."""
        return max(1, size // self.dtype.itemsize // hc.size()) * hc.size()

    def wrong(self, count: int) -> int:
        """Run the operation once on known values and return the number of wrong elements."""
        ranks, share = hc.size(), count // hc.size()
        to = np.repeat(np.arange(ranks), share)
        got = hc.alltoall(((hc.rank() * ranks + to) % 100).astype(self.dtype), name=f"check.{count}")
        expected = ((to * ranks + hc.rank()) % 100).astype(self.dtype)
        return int(np.count_nonzero(np.asarray(got) != expected))

    def prepare(self, count: int) -> Callable[[], object]:
        """Return the operation to time, on a buffer of ``count`` elements."""
        data = np.ones(count, self.dtype)
        name = f"bench.{count}"
        return lambda: hc.alltoall(data, name=name)

    def bus_factor(self) -> float:
        """Return the bytes on the bus for each byte of the buffer, as nccl-tests count them."""
        return (hc.size() - 1) / hc.size()


def _measure(operation: Allreduce | Alltoall, size: int, options: Namespace) -> Row:
    count = operation.elements(size)
    wrong = int(hc.allreduce(np.array(operation.wrong(count), np.int64), op=hc.Sum, name="wrong"))
    turn = operation.prepare(count)
    for _ in range(options.warmup):
        turn()
    turns = _turns(turn, options.iters)
    hc.barrier()
    began = time.perf_counter()
    for _ in range(turns):
        turn()
    mine = (time.perf_counter() - began) / turns
    seconds = float(hc.allreduce(np.array(mine), op=hc.Max, name="time"))
    size_bytes = count * operation.dtype.itemsize
    algbw = size_bytes / seconds / 1e9
    return Row(
        size=size_bytes,
        count=count,
        type=operation.dtype.name,
        redop=operation.redop,
        root=-1,
        time_us=seconds * 1e6,
        algbw=algbw,
        busbw=algbw * operation.bus_factor(),
        wrong=wrong,
    )


def _turns(turn: Callable[[], object], asked: int) -> int:
    """Return how many turns fit into the time for one size; equal on all ranks, as the slowest rank's trial counts."""
    hc.barrier()
    began = time.perf_counter()
    turn()
    once = float(hc.allreduce(np.array(time.perf_counter() - began), op=hc.Max, name="trial"))
    return max(1, min(asked, int(_MOST_SECONDS / once)))
