"""Key-value stores, and engines with collectives, of which one rank fails in some way.

usage: stores.py SCENARIO [TYPE]
"""

import os
import signal
import sys
import time

import numpy as np
from common import attempt, publish, report

import horocache as hc
from horocache import kvstore
from horocache.dag import Engine

KEYS = list(range(20))


def made(kind):
    """Make a store with some steps behind it, so that all responses are cached."""
    store = kvstore.create(kind, blocking=False)
    store.init(KEYS, [np.zeros(5000) for _ in KEYS])
    values = [np.ones(5000) for _ in KEYS]
    for _ in range(3):
        step(store, values)
        store.wait(*values)
    store.barrier()
    return store, values


def step(store, values):
    for value in values:
        value.fill(1.0)
    for key, value in zip(KEYS, values, strict=True):
        store.pushpull(key, value, priority=-key)


def killed(kind):
    """Rank 1 is killed while a step is in flight."""
    store, values = made(kind)

    def steps():
        for _ in range(1000):
            step(store, values)
            if hc.rank() == 1:
                publish("ended_at", repr(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            store.wait(*values)

    failed = attempt("pending", steps)
    attempt("next", lambda: (store.pushpull(0, values[0]), store.wait(values[0])))
    attempt("dead", lambda: report("dead nodes", value=store.get_num_dead_node()))
    sys.exit(3 if failed is not None else 0)


def stopped(kind):
    """Rank 1 stops for a while in the middle of a step."""
    store, values = made(kind)
    step(store, values)
    if hc.rank() == 1:
        publish("stopping", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    store.wait(*values)
    report("sums", value=sorted({float(value[0]) for value in values}))
    store.close()


def omitted(kind):
    """Rank 1 does not use key 3 in the last step."""
    store, values = made(kind)
    if hc.rank() == 1:
        return
    store.pushpull(3, values[3])
    attempt("wait", lambda: store.wait(values[3]))


def deep(depth):
    """Rank 1 is killed while a deep graph of operations and collectives is pending."""
    engine = Engine(2)
    x, y = np.ones(1000), np.ones(1000)
    wait = engine.var("gate")
    for number in range(int(depth)):
        engine.collective(lambda number=number: hc.allreduce_async_(x, name=f"x{number % 7}"), writes=[x])
        engine.push(lambda: np.add(y, x, out=y), [x, wait], [y])
    if hc.rank() == 1:
        publish("ended_at", repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    failed = attempt("y", lambda: engine.wait(y))
    attempt("x", lambda: engine.wait(x))
    engine.push(lambda: y.fill(7.0), writes=[y])
    engine.wait(y)
    report("after", value=float(y[0]))
    engine.close()
    sys.exit(3 if failed is not None else 0)


hc.init()
{"killed": killed, "stopped": stopped, "omitted": omitted, "deep": deep}[sys.argv[1]](sys.argv[2])
