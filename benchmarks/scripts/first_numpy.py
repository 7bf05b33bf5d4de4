"""A first collective on a NumPy array; prints the system's monotonic time when it is done."""

import sys
import time

import numpy as np

import horocache as hc

hc.init()
assert hc.allreduce(np.ones(4, np.float32), op=hc.Sum)[0] == hc.size()
sys.stdout.write(f"{time.monotonic()}\n")  # one write, so that the lines of two ranks do not mix
