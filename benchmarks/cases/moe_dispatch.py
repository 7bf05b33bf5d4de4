"""Tokens dispatched through windows, without a framework: the bandwidth against memory that all ranks copy at once.

Each rank writes a batch of ``size`` bytes for every other rank, whose host reads it in place; a result has 8 bytes. The
yard-stick copies as many bytes by one call (``benchmarks/yardstick.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.figures import OURS, Series
from benchmarks.peers import Rank
from benchmarks.report import size_label
from benchmarks.timing import Contestant, alternate, check
from benchmarks.yardstick import Yardstick

_RESULT = 8
_INNER = 20


class Dispatch:
    """A call that sends the same bytes to each other rank. See :class:`horocache.moe.exchanges.Call`."""

    lossless = False

    def __init__(self, rank: Rank, size: int) -> None:
        self.rows = [int(peer != rank.rank) for peer in range(rank.size)]
        self.row_bytes, self.result_row_bytes = size, _RESULT
        self._batch = np.full(size, rank.rank + 1, np.uint8)
        self._own = rank.rank + 1
        self.checks = False
        self.wrong = 0

    def pack(self, peer: int, memory: Any) -> None:
        """Write the batch."""
        memory[:] = self._batch

    def serve(self, peer: int, rows: int, batch: Any, result: Any) -> None:
        """Answer with the number of this rank; the batch stays where it is."""
        if self.checks:
            self.wrong += int((batch != peer + 1).sum())
        result[:] = self._own

    def take(self, peer: int, result: Any) -> None:
        """Check the result."""
        if self.checks:
            self.wrong += int((result != peer + 1).sum())


def measure(rank: Rank, sizes: list[int], repetitions: int, budget_s: float) -> list[Series]:
    """Measure the bytes per second that a rank dispatches.

    Args:
        rank: this rank.
        sizes: bytes for each other rank.
        repetitions: of each size, at most.
        budget_s: for each size.
    """
    import horocache as hc
    from horocache.moe.exchanges import Options, make_exchange

    rank.horocache()
    others = rank.size - 1
    yardstick = Yardstick(rank, max(sizes) * others)
    series = []
    for size in sizes:
        options = Options(f"dispatch {size}", hc.global_process_set, (True,) * rank.size, size, _RESULT, 1)
        exchange, call = make_exchange("one_sided", options), Dispatch(rank, size)
        contestants = [
            Contestant(OURS, _bind(exchange, call), inner=_INNER, wrong=_checked(exchange, call)),
            yardstick.contestant(size * others),
        ]
        wrong = check(rank.page, contestants)
        times = alternate(rank.page, contestants, repetitions=repetitions, budget_s=budget_s)
        case = f"{size_label(size)} for each of {others} other rank{'s' * (others > 1)}"
        for name, one in times.items():
            detail = {"bytes": size, "wrong": wrong.get(name, 0)}
            series.append(
                Series(case, name, "GB/s", one.seconds, size * others, cpu_seconds=one.cpu_seconds, detail=detail)
            )
        exchange.close()
    return series


def _bind(exchange: Any, call: Dispatch) -> Any:
    return lambda: exchange.run(call)


def _checked(exchange: Any, call: Dispatch) -> Any:
    def wrong() -> int:
        call.checks = True
        exchange.run(call)
        call.checks = False
        return call.wrong

    return wrong
