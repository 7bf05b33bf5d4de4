"""Rank 1 raises an error. As in most programs, no rank catches errors."""

import numpy as np
from common import allreduce_and_check

import horocache as hc

hc.init()
allreduce_and_check("x")
if hc.rank() == 1:
    raise ValueError("the data are bad")
while True:
    hc.allreduce(np.ones(3), name="step")
