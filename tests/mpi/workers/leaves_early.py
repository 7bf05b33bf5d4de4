"""All ranks but rank 0 leave early, in a job on two hosts with many process sets."""

from __future__ import annotations

import sys
import time

from common import pretend_hosts
from mpi4py import MPI

pretend_hosts(sys.argv[1])

import horocache as hc  # noqa: E402

SETS = [[0, 2], [0, 3], [1, 2], [1, 3], [0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]]

hc.init(process_sets=[hc.ProcessSet(ranks) for ranks in SETS])
hc.barrier()
if hc.rank() == 0:
    for rank in range(1, hc.size()):
        MPI.COMM_WORLD.recv(source=rank)
    hc.shutdown()
else:
    began = time.monotonic()
    hc.shutdown()
    print(f"left after {time.monotonic() - began:.1f}", flush=True)
    MPI.COMM_WORLD.send(None, 0)
