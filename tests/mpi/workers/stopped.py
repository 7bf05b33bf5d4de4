"""A rank of two hosts is stopped or dies; each other rank writes its outcome into a file."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from common import pretend_hosts

FOLDER, LAYOUT, CASE, VICTIM = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
pretend_hosts(LAYOUT)

import horocache as hc  # noqa: E402

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
            hc.allreduce(np.ones(10), op=hc.Sum, name="step")
    except hc.HorocacheError as error:
        return f"{type(error).__name__}: {error}"


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
for _ in range(3):
    hc.allreduce(np.ones(10), op=hc.Sum, name="step")
if hc.rank() == VICTIM:
    os.kill(os.getpid(), signal.SIGKILL if CASE == "dies" else signal.SIGSTOP)
write_outcome(work_until_an_error())
wait_for(hc.size() - 1)
if hc.rank() == (VICTIM + 1) % hc.size() and CASE == "stays":
    os.kill(PIDS[VICTIM], signal.SIGKILL)
os._exit(7)
