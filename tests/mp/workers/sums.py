"""Many checked sums, small and large. usage: sums.py STEPS [VALUE]; PAUSE: a file to wait for in the middle"""

import os
import sys

import numpy as np
from common import allreduce_and_check, await_file, job, publish, report

import horocache as hc

steps = int(sys.argv[1])
value = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
with job():
    for step in range(steps):
        allreduce_and_check(f"small.{step % 5}", 10, value)
        if step == steps // 2:
            publish(f"middle.{hc.rank()}", str(os.getpid()))
            if "PAUSE" in os.environ:
                await_file(os.environ["PAUSE"])
    allreduce_and_check("large", 1 << 20, value)
    gathered = hc.allgather(np.full((hc.rank() + 1, 2), hc.rank()), name="rows")
    assert gathered.shape == (hc.size() * (hc.size() + 1) // 2, 2)
    report("done", rank=hc.rank(), size=hc.size(), local_rank=hc.local_rank(), local_size=hc.local_size())
