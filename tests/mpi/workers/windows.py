"""One-sided exchanges on simulated hosts: rows that name their sender, receiver and call.

usage: windows.py LAYOUT MODE
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from common import expect_error, pretend_hosts

LAYOUT, MODE = sys.argv[1:]
pretend_hosts(LAYOUT)

import horocache as hc  # noqa: E402
from horocache.moe.exchanges import EarlyExit, OneSided, Outcome  # noqa: E402

WIDTH = 8
ROW_BYTES = WIDTH * 8


def pattern(sender: int, receiver: int, step: int, rows: int) -> np.ndarray:
    return np.arange(rows * WIDTH, dtype=np.int64) + ((sender * 64 + receiver) * 10_000 + step) * 1_000_000


class Rows:
    """A call with some rows for every rank; the host adds one to every number. All numbers are checked."""

    row_bytes = result_row_bytes = ROW_BYTES

    def __init__(self, step: int, rows: list[int], lossless: bool = False) -> None:
        self.rows, self.step, self.lossless = rows, step, lossless
        self.taken: list[int] = []

    def pack(self, peer: int, memory: Any) -> None:
        memory.view(np.int64)[:] = pattern(hc.rank(), peer, self.step, self.rows[peer])

    def serve(self, peer: int, rows: int, batch: Any, result: Any) -> None:
        np.testing.assert_array_equal(batch.view(np.int64), pattern(peer, hc.rank(), self.step, rows))
        result.view(np.int64)[:] = batch.view(np.int64) + 1

    def take(self, peer: int, result: Any) -> None:
        want = pattern(hc.rank(), peer, self.step, self.rows[peer]) + 1
        np.testing.assert_array_equal(result.view(np.int64), want)
        self.taken.append(peer)


def opened(name: str, room: int, **early_exit: Any) -> OneSided:
    hosts = (True,) * hc.size()
    row_bytes = (ROW_BYTES, ROW_BYTES)
    exchange = OneSided(name, hc.global_process_set, hosts, row_bytes, EarlyExit(**early_exit), room)
    exchange.open()
    return exchange


def rounds() -> None:
    """Calls of all sizes, up to many frames; no control message follows the first of them."""
    exchange = opened("all sizes", 2_000)
    generator = np.random.default_rng(hc.rank())
    for step in range(40):
        if step == 2:
            before = hc.metrics()
        call = Rows(step, [int(rows) for rows in generator.choice([0, 1, 7, 300, 2_000], hc.size())])
        exchange.run(call)
        assert sorted(call.taken) == [peer for peer, rows in enumerate(call.rows) if rows]
    after = hc.metrics()
    exchange.run(Rows(40, [1] * hc.size()))  # no rank ends the job before all have counted
    sent = {name: after[name] - before[name] for name in after if "control" in name and "bytes" in name}
    assert sent and not any(sent.values()), sent
    exchange.close()


def early() -> None:
    """Calls that leave at once, and lossless calls between them, which lose nothing."""
    exchange = opened("early", 50, epsilon=0, tau=0.0)
    lost = 0
    for step in range(200):
        call = Rows(step, [3] * hc.size(), lossless=step % 10 == 9)
        report = exchange.run(call)
        delivered = [peer for peer, outcome in enumerate(report.outcomes) if outcome is Outcome.DELIVERED]
        assert sorted(call.taken) == delivered
        assert hc.rank() in delivered and (not call.lossless or len(delivered) == hc.size())
        lost += hc.size() - len(delivered)
    exchange.close()


def refused() -> None:
    """A batch that is larger than its cell, and a rank that cannot make its batches."""
    exchange = opened("small", 4)
    far = next(rank for rank, host in enumerate(LAYOUT) if host != LAYOUT[0])
    rows = [1] * hc.size()
    if hc.rank() == 0:
        rows[far] = 5
    words = f"rank 0 and rank {far} are on different hosts and have 5 tokens to exchange in layer 'small'"
    expect_error(hc.InvalidArgumentError, words, lambda: exchange.run(Rows(0, rows)))
    exchange.run(Rows(1, [1] * hc.size()))
    if hc.rank() == far:
        exchange.fail(ValueError("no gate"))
    else:
        expect_error(hc.InputFailedError, "ValueError: no gate", lambda: exchange.run(Rows(2, [1] * hc.size())))
    exchange.run(Rows(3, [1] * hc.size()))


hc.init()
{"rounds": rounds, "early": early, "refused": refused}[MODE]()
hc.shutdown()
print("right", flush=True)
