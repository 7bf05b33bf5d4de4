"""Rank 1 is killed while operations of two backends are in flight; the others report their errors and exit with 3.

usage: mixed_victim.py BACKEND,BACKEND
"""

import os
import signal
import sys
import time

import numpy as np
from common import attempt, publish

import horocache.mcr_dl as mcr_dl


def step(backends):
    """Post a large operation on each backend, and one on either of them; return the handles."""
    size = mcr_dl.get_size()
    handles = [mcr_dl.all_reduce(backend, np.ones(1 << 18), async_op=True) for backend in backends]
    output = np.zeros(size << 14)
    handles += [mcr_dl.all_to_all_single(backend, output, np.ones(size << 14), async_op=True) for backend in backends]
    return [*handles, mcr_dl.all_reduce("auto", np.ones(100), async_op=True)]


def wait_for_all(handles):
    for handle in handles:
        handle.wait()


def steps_until_rank_1_dies(backends):
    """Rank 1 kills itself with two steps in flight; other ranks may still wait for the step before."""
    for _ in range(3):
        wait_for_all(step(backends))
    handles = step(backends) + step(backends)
    if mcr_dl.get_rank() == 1:
        publish("ended_at", repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_all([*handles, *step(backends), *step(backends)])


def main():
    backends = sys.argv[1].split(",")
    mcr_dl.init(backends)
    failed = attempt("pending", lambda: steps_until_rank_1_dies(backends))
    attempt("next", lambda: mcr_dl.all_reduce(backends[0], np.ones(3)))
    sys.exit(3 if failed is not None else 0)


main()
