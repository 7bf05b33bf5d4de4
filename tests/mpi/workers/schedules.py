"""Random schedules of operations on two backends at once: every rank submits in its own order."""

from __future__ import annotations

import random
import sys

import numpy as np

import horocache as hc

BACKENDS = ("mpi", "shm")


def run_schedule(seed: int) -> None:
    shared, own = random.Random(seed), random.Random(f"{seed} {hc.rank()}")
    operations = [
        (f"{shared.choice('abcdef')}{i}", shared.choice(BACKENDS), shared.choice([1, 3, 700, 5000]))
        for i in range(shared.randint(2, 6))
    ]
    own.shuffle(operations)
    handles = []
    for name, backend, count in operations:
        values = np.full(count, hc.rank() + count, np.float32)
        handles.append((hc.allreduce_async(values, op=hc.Sum, name=name, backend=backend), count))
    own.shuffle(handles)
    for handle, count in handles:
        got = hc.synchronize(handle)
        expected = hc.size() * count + hc.size() * (hc.size() - 1) // 2
        assert got.shape == (count,) and (got == expected).all(), (seed, count, got[0], expected)
    if shared.random() < 0.3:  # a blocking operation on each backend
        for backend in BACKENDS:
            total = hc.allreduce(np.array([1.0]), op=hc.Sum, name=f"blocking {backend}", backend=backend)
            assert total[0] == hc.size(), seed


def main() -> None:
    hc.init()
    for seed in range(int(sys.argv[1])):
        run_schedule(seed)
    print(f"right {sys.argv[1]}", flush=True)


main()
