"""Exchanges whose ranks come one after the other, and whose experts sleep: which work does not wait for all ranks.

Experts on an accelerator leave the host's cores alone, so experts that sleep show the order of the exchange, also with
more ranks than cores. Rank ``r`` comes ``r`` times the stagger later than rank 0. A batch takes its host a time for
each row. The times of every exchange stand beside those of a model: a synchronous exchange begins to serve when the
last rank has come, and a one-sided one serves each batch when it arrives, and its own one when no other is there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import OURS, Series
from benchmarks.moe_setup import BALANCED, KNOBS, SKEWED, Shape, choices
from benchmarks.peers import Rank

Rows = npt.NDArray[np.int64]
_PAUSE_S = 0.2e-3


def rows_of(routing: str, ranks: int, shape: Shape) -> Rows:
    """Return the rows that each rank has for each other one, shape ``(ranks, ranks)``: by sender, then by host."""
    from horocache.moe.route import Route, even_expert_ranks

    hosts = even_expert_ranks(shape.experts, ranks)
    return np.array([Route(choices(routing, shape, rank), hosts, ranks).rows for rank in range(ranks)])


def synchronous_s(rows: Rows, stagger_s: float, row_s: float) -> float:
    """Return when the last rank leaves a synchronous exchange, by the model, from the time at which rank 0 comes."""
    return (len(rows) - 1) * stagger_s + float(rows.sum(0).max()) * row_s


def one_sided_s(rows: Rows, stagger_s: float, row_s: float) -> float:
    """Return when the last rank leaves a one-sided exchange, by the model."""
    last = 0.0
    for host in range(len(rows)):
        now, waiting = host * stagger_s, [each for each in range(len(rows)) if each != host]
        own = float(rows[host, host]) * row_s
        while waiting or own:
            if waiting and (waiting[0] * stagger_s <= now or not own):
                sender = waiting.pop(0)
                now = max(now, sender * stagger_s) + float(rows[sender, host]) * row_s
            else:
                now, own = now + own, 0.0
        last = max(last, now)
    return last


class Sleeping:
    """A call whose batches have the number of their sender, and whose host sleeps."""

    row_bytes = result_row_bytes = 8
    lossless = False

    def __init__(self, rank: int, rows: Rows, row_s: float) -> None:
        self.rows: Sequence[int] = [int(each) for each in rows[rank]]
        self._rank, self._row_s = rank, row_s
        self.wrong = 0

    def pack(self, peer: int, memory: Any) -> None:
        """Write the batch."""
        memory[:] = self._rank

    def serve(self, peer: int, rows: int, batch: Any, result: Any) -> None:
        """Sleep, and answer with the number of the sender plus one."""
        self.wrong += int((batch != peer).sum())
        time.sleep(rows * self._row_s)
        result[:] = peer + 1

    def take(self, peer: int, result: Any) -> None:
        """Check the result."""
        self.wrong += int((result != self._rank + 1).sum())


def measure(rank: Rank, shape: dict[str, int], stagger_s: float, row_s: float, repetitions: int) -> list[Series]:
    """Measure every exchange, with balanced and with skewed rows.

    Args:
        rank: this rank.
        shape: fields of Shape, of which hidden and inner do not count.
        stagger_s: how much later each rank comes than the one before.
        row_s: how long the experts take for a row.
        repetitions: of each exchange and routing.
    """
    import horocache as hc
    from horocache.moe.exchanges import Options, exchange_names, make_exchange

    rank.horocache(**KNOBS)
    made = Shape(**shape)
    exchanges = {}
    for name in exchange_names():
        hosts = (True,) * rank.size
        exchanges[name] = make_exchange(
            name, Options(f"overlap {name}", hc.global_process_set, hosts, 8, 8, made.tokens)
        )
    series = []
    for routing in (BALANCED, SKEWED):
        rows = rows_of(routing, rank.size, made)
        seconds: dict[str, list[float]] = {name: [] for name in exchanges}
        for repetition in range(-1, repetitions):
            for name, exchange in exchanges.items():
                call = Sleeping(rank.rank, rows, row_s)
                rank.page.barrier(_PAUSE_S)
                start = time.perf_counter()
                time.sleep(rank.rank * stagger_s)
                exchange.run(call)
                if repetition >= 0:  # the first one connects the ranks
                    seconds[name].append(time.perf_counter() - start)
                if call.wrong:
                    raise AssertionError(f"{name}: {call.wrong} bytes are wrong on rank {rank.rank}")
        case = f"{rank.size} ranks, {routing}, stagger {1e3 * stagger_s:g} ms"
        for name in exchanges:
            expected = one_sided_s if name == "one_sided" else synchronous_s
            detail = {"expected_s": expected(rows, stagger_s, row_s), "busiest_s": float(rows.sum(0).max()) * row_s}
            series.append(Series(case, f"{OURS}, {name}", "ms", seconds[name], detail=detail))
    for exchange in exchanges.values():
        exchange.close()
    return series
