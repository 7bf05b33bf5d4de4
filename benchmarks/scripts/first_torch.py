"""A first collective on a torch tensor; prints the system's monotonic time when it is done."""

import sys
import time

import horocache.torch as hvd
import torch

hvd.init()
assert hvd.allreduce(torch.ones(4), op=hvd.Sum)[0] == hvd.size()
sys.stdout.write(f"{time.monotonic()}\n")  # one write, so that the lines of two ranks do not mix
