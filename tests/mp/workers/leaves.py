"""Rank 1 ends with operations in flight that no thread waits for. Then rank 0 submits these operations.

usage: leaves.py BINDING. Rank 1 drops its references to the operations before their data arrive. If their memory were
freed, the data would overwrite one of the arrays that are made next.
"""

import atexit
import gc
import sys

import numpy as np
from common import await_file, publish, report

import horocache as hc

BINDING = sys.argv[1]
NAMES = ("late", "later")
ELEMENTS = 16 << 10


def receive_after_the_end():
    if rank != 1:
        return
    gc.collect()
    others = [np.full(ELEMENTS, 3, np.float32) for _ in range(100)]
    publish("let-go")
    await_file("done")
    report("others", untouched=all(bool((other == 3).all()) for other in others))


atexit.register(receive_after_the_end)  # handlers run in reverse order: this one runs after horocache's

if BINDING == "torch":
    import horocache.torch as hvd
    import torch

    def tensor(value):
        return torch.full((ELEMENTS,), value)

elif BINDING == "tensorflow":
    import horocache.tensorflow as hvd
    import tensorflow as tf
    from horocache.tensorflow import calls

    from horocache.base.operation_codes import OP_BROADCAST

    SOURCE = tf.Variable(tf.fill([ELEMENTS], 2.0))  # stays alive, so that the results have memory of their own

    def tensor(value):
        return tf.fill([ELEMENTS], value)

else:
    hvd = hc

    def tensor(value):
        return np.full(ELEMENTS, value, np.float32)


def start(name):
    """Start an operation and drop the references to it."""
    if BINDING == "tensorflow":  # its kernels drop references if an error comes before the kernel that waits
        calls.enqueue_into(
            [SOURCE.read_value()], calls.Call(OP_BROADCAST, f"broadcast.{name}", hvd.global_process_set, root=0)
        )
    else:
        hvd.broadcast_async_(tensor(2.0), 0, name=name)


hvd.init()
rank = hvd.rank()
if rank == 1:
    for name in NAMES:
        start(name)
else:
    await_file("let-go")
    results = [np.asarray(hvd.broadcast(tensor(1.0), 0, name=name)) for name in NAMES]
    report("results", right=all(bool((result == 1).all()) for result in results))
    publish("done")
