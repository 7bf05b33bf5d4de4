"""Reduces until an error. Each rank writes its error into a file, and ends when all ranks have written theirs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from common import pretend_hosts

pretend_hosts(sys.argv[2])

import horocache as hc  # noqa: E402

FOLDER = Path(sys.argv[1])
hc.init()
try:
    for _ in range(1000):
        hc.allreduce(np.ones(3_000_000), op=hc.Sum, name="step", backend="mpi")
except hc.HorocacheError as error:
    partial = FOLDER / f"{hc.rank()}.partial"
    partial.write_text(f"{type(error).__name__}: {error}")
    partial.rename(FOLDER / f"rank{hc.rank()}")
    deadline = time.monotonic() + 20
    while len(list(FOLDER.glob("rank*"))) < hc.size() and time.monotonic() < deadline:
        time.sleep(0.01)  # mpiexec kills the others when one has ended
    sys.exit(7)
