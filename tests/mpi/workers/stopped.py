"""A rank of two hosts is stopped or dies; each other rank writes its outcome into a file."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import pretend_hosts

FOLDER, LAYOUT, CASE, VICTIM = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
LAYER = "layer" in sys.argv[5:]  # the ranks exchange rows in a layer, and reduce nothing
pretend_hosts(LAYOUT)

import horocache as hc  # noqa: E402
from horocache.moe.exchanges import EarlyExit, OneSided  # noqa: E402

LINK_TIMEOUT_S = 2.0
PATIENCE_S = 60.0


def write_outcome(text: str) -> None:
    """Write a file that is complete when it appears."""
    partial = FOLDER / f".{hc.rank()}"
    partial.write_text(text)
    partial.rename(FOLDER / f"rank{hc.rank()}")


def wait_for(count: int) -> None:
    """Wait until ``count`` ranks have written their file: mpiexec ends the others when one rank has failed."""
    limit = time.monotonic() + PATIENCE_S
    while len(list(FOLDER.glob("rank*"))) < count and time.monotonic() < limit:
        time.sleep(0.01)


def stop_the_lowest_ranks() -> None:
    """On each host, the second rank stops the lowest one for twice as long as a host may be silent."""
    if hc.local_rank() == 1:
        os.kill(PIDS[hc.rank() - 1], signal.SIGSTOP)
        time.sleep(2 * LINK_TIMEOUT_S)
        os.kill(PIDS[hc.rank() - 1], signal.SIGCONT)
    total = hc.allreduce(np.ones(10), op=hc.Sum, name="while ranks are stopped")
    assert total[0] == hc.size(), total


def work_until_an_error() -> str:
    try:
        while True:
            step()
    except hc.HorocacheError as error:
        return f"{type(error).__name__}: {error}"


def reduce() -> None:
    hc.allreduce(np.ones(10), op=hc.Sum, name="step")


class Row:
    """One row for every rank of a one-sided exchange."""

    row_bytes = result_row_bytes = 8
    lossless = False

    def __init__(self) -> None:
        self.rows = [1] * hc.size()

    def pack(self, peer: int, memory: Any) -> None:
        memory[:] = peer

    def serve(self, peer: int, rows: int, batch: Any, result: Any) -> None:
        result[:] = batch

    def take(self, peer: int, result: Any) -> None:
        assert (result == peer).all()


hc.init(
    link_timeout=LINK_TIMEOUT_S if CASE != "dies" else 1000.0,
    stall_check_time_seconds=2.0,
    stall_shutdown_time_seconds=5.0 if CASE == "stays" else 100.0,
    flight_record="off",
)
PIDS = hc.allgather_object(os.getpid())
if CASE == "goes on":
    stop_the_lowest_ranks()
    write_outcome("right")
    hc.shutdown()
    sys.exit(0)
step = reduce
if LAYER:
    exchange = OneSided("layer", hc.global_process_set, (True,) * hc.size(), (8, 8), EarlyExit(), 1)
    step = functools.partial(exchange.run, Row())
if hc.rank() == VICTIM:
    for _ in range(3):
        step()
    os.kill(os.getpid(), signal.SIGKILL if CASE == "dies" else signal.SIGSTOP)
outcome = work_until_an_error()
if LAYER:
    exchange.close()  # the others may be in the next call
write_outcome(outcome)
wait_for(hc.size() - 1)
if hc.rank() == (VICTIM + 1) % hc.size() and CASE == "stays":
    os.kill(PIDS[VICTIM], signal.SIGKILL)
os._exit(7)
