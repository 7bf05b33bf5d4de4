"""Reduces until an error, and writes it into a file: a cut connection also cuts off the output."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import horocache as hc

FOLDER = Path(sys.argv[1])
hc.init()
report = FOLDER / f"rank{hc.rank()}"
try:
    for step in range(100_000):
        hc.allreduce(np.ones(50_000), op=hc.Sum, name="step")
        if step == 5:
            (FOLDER / f"running{hc.rank()}").touch()
except hc.PeerLost as error:
    partial = report.with_suffix(".partial")
    partial.write_text(f"{time.time()} {error}")
    partial.rename(report)
