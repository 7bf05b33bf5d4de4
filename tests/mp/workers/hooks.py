"""On rank 1, user code that runs within a step raises an error that is not caught. usage: hooks.py WHERE"""

import sys
import time

import numpy as np
from common import attempt, publish

import horocache as hc


def raise_on_rank_1(step):
    if hc.rank() == 1 and step == 2:
        publish("ended_at", repr(time.time()))
        raise ValueError("the user's code is wrong")


class Compressor:
    steps = 0

    @classmethod
    def compress(cls, array):
        raise_on_rank_1(cls.steps)
        cls.steps += 1
        return array, None

    @staticmethod
    def decompress(array, ctx):
        return array


def with_compressor(step):
    hc.allreduce(np.ones(3), name="x", compression=Compressor)


def with_hook(step):
    import horocache.torch as hvd
    import torch

    gradient = torch.ones(3, requires_grad=True)
    gradient.register_hook(lambda _: raise_on_rank_1(step))
    hvd.allreduce(gradient, name="x").sum().backward()


take_step = {"compressor": with_compressor, "hook": with_hook}[sys.argv[1]]
hc.init()
for step in range(5):
    if hc.rank() == 1:
        take_step(step)
    elif attempt("pending", lambda step=step: take_step(step)) is not None:
        attempt("next", lambda: hc.allreduce(np.ones(1), name="next"))
        sys.exit(3)
