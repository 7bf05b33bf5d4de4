"""Ranks send messages in a ring while rank 1 damages its process. usage: messages.py raise|close ELEMENTS

raise: rank 1 raises an error that is not caught. close: rank 1 closes all descriptors, including the daemon's, and
opens files under their numbers.
"""

import os
import sys
import time

import numpy as np
from common import attempt, report

import horocache as hc

how, count = sys.argv[1], int(sys.argv[2])
files = []


def take_descriptors():
    os.closerange(3, 4096)
    files.extend(os.memfd_create("mine") for _ in range(20))
    time.sleep(0.3)  # longer than a closed link may take to count as a lost rank


def exchange():
    rank, size = hc.rank(), hc.size()
    for step in range(600):
        if rank == 1 and step == 300:
            if how == "raise":
                raise RuntimeError("the reason")
            take_descriptors()
        hc.sendrecv(np.ones(count, np.uint8), (rank + 1) % size, np.zeros(count, np.uint8), (rank - 1) % size)
        hc.allreduce(np.ones(3), name="x")


hc.init()
if hc.rank() == 1 and how == "raise":
    exchange()
attempt("exchange", exchange)
hc.shutdown()
if files:
    report("files", sizes=[os.fstat(file).st_size for file in files])
