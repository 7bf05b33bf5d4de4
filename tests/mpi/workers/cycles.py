"""Starts and ends a job many times in the same processes."""

from __future__ import annotations

import sys

import numpy as np
from common import pretend_hosts

pretend_hosts(sys.argv[1])

import horocache as hc  # noqa: E402

for cycle in range(int(sys.argv[2])):
    hc.init(process_sets=[list(range(1, len(sys.argv[1])))])
    assert hc.allreduce(np.array([cycle]), op=hc.Sum, name="a")[0] == cycle * hc.size()
    if cycle % 2:
        hc.sendrecv(np.ones(3), (hc.rank() + 1) % hc.size(), np.empty(3), (hc.rank() - 1) % hc.size())
    hc.shutdown()
print("right", flush=True)
