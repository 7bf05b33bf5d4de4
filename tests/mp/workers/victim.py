"""The rank VICTIM ends in the way HOW at the time WHEN; the others report their errors and exit with 3.

usage: victim.py VICTIM HOW WHEN
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import time

import numpy as np
from common import allreduce_and_check, attempt, await_file, publish, report

import horocache as hc


def end(how):
    publish("ended_at", repr(time.time()))
    if how == "exit":
        sys.exit(5)
    elif how == "raise-exit":
        raise SystemExit(5)
    elif how == "exit-well":
        sys.exit(0)
    elif how == "exit-at-once":
        os._exit(5)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "crash":
        print("about to follow a null pointer", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "hold":
        # PyDLL keeps the GIL: no Python code runs in this process any more.
        ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
    elif how == "raise":
        raise ValueError("the data are bad")
    elif how == "kill-with-children":
        for _ in range(2):
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,))
            child.start()
        os.kill(os.getpid(), signal.SIGKILL)


def during(how):
    """Submit more than the others can have finished, then end without a wait."""
    handles = [hc.allreduce_async(np.ones(4 << 20, np.float32), op=hc.Sum, name=f"large.{i}") for i in range(4)]
    report("submitted", handles=len(handles))
    end(how)


def main():
    victim, how, when = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    rank = int(os.environ["HOROCACHE_RANK"])
    is_victim = rank == victim
    if when == "before-init":
        if is_victim:
            end(how)
        # Together, so that no other rank misses the start timeout because its imports take long.
        publish(f"up.{rank}")
        for other in range(int(os.environ["HOROCACHE_SIZE"])):
            if other != victim:
                await_file(f"up.{other}")
    if attempt("init", hc.init) is not None:
        sys.exit(3)
    if when != "before":
        for step in range(3):
            allreduce_and_check(f"early.{step % 2}")
    if is_victim:
        during(how) if when == "during" else end(how)
    if when == "during":
        # Operations that complete must be right; the others must fail.
        failed = None
        for i in range(4):
            failed = attempt(f"large.{i}", lambda i=i: check_large(i))
            if failed is not None:
                break
        if failed is None:
            failed = attempt("pending", lambda: allreduce_and_check("never"))
    else:
        failed = attempt("pending", lambda: allreduce_and_check("never"))
    attempt("next", lambda: allreduce_and_check("later"))
    sys.exit(3 if failed is not None else 0)


def check_large(index):
    result = hc.allreduce(np.ones(4 << 20, np.float32), op=hc.Sum, name=f"large.{index}")
    if not (result == hc.size()).all():
        report("wrong", name=f"large.{index}")
        sys.exit(99)


main()
