"""Rank 0 is stopped, rank 2 dies, and rank 1 ends because of the loss. Then rank 0 continues and sees both losses."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from common import allreduce_and_check, attempt

import horocache as hc


def states(pid):
    """The states of the process's threads, as the letters of proc(5); empty once the process is gone."""
    found = set()
    with contextlib.suppress(OSError):  # the process ends between two steps of the listing
        for path in Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # a thread ends meanwhile
                found.add(path.read_text().rpartition(") ")[2][0])
    return found


def wait_until(pid, letters):
    until = time.monotonic() + 30
    while not states(pid) <= letters and time.monotonic() < until:
        time.sleep(0.01)


hc.init()
pids = hc.allgather_object(os.getpid())
if hc.rank() == 3:
    os.kill(pids[0], signal.SIGSTOP)
    wait_until(pids[0], {"T"})
    os.kill(pids[2], signal.SIGKILL)
attempt("pending", lambda: allreduce_and_check("never"))
if hc.rank() == 1:
    os._exit(3)
if hc.rank() == 3:
    wait_until(pids[1], {"Z", "X"})
    os.kill(pids[0], signal.SIGCONT)
sys.exit(3)
