"""Messages within and between hosts: random pairs, sizes and tags, a ring of large messages, and a mismatch."""

from __future__ import annotations

import random
import sys

import numpy as np
from common import pretend_hosts

pretend_hosts(sys.argv[1])

import horocache as hc  # noqa: E402


def payload(source: int, number: int, count: int) -> np.ndarray:
    return (np.arange(count) + 1000 * source + number).astype(np.int32)


def random_pairs(seed: int, messages: int) -> None:
    shared = random.Random(seed)
    handles, expected = [], []
    for number in range(messages):
        source, target = shared.randrange(hc.size()), shared.randrange(hc.size())
        count, tag = shared.choice([0, 1, 100, 5000, 200_000]), shared.randrange(3)
        if hc.rank() == source:
            handles.append(hc.isend(payload(source, number, count), target, tag))
        if hc.rank() == target:
            values = np.empty(count, np.int32)
            handles.append(hc.irecv(values, source, tag))
            expected.append((values, payload(source, number, count)))
    total = hc.allreduce(np.ones(3), op=hc.Sum)  # while the messages are in flight
    assert (total == hc.size()).all()
    random.Random(f"{seed} {hc.rank()}").shuffle(handles)
    for handle in handles:
        hc.synchronize(handle)
    for got, wanted in expected:
        np.testing.assert_array_equal(got, wanted)


def ring(count: int) -> None:
    ranks = hc.size()
    values = np.empty(count, np.int32)
    hc.sendrecv(payload(hc.rank(), 0, count), (hc.rank() + 1) % ranks, values, (hc.rank() - 1) % ranks)
    np.testing.assert_array_equal(values, payload((hc.rank() - 1) % ranks, 0, count))


def mismatch() -> None:
    """Both ranks of a large message get an error if the receiver expects another size, and the job goes on."""
    if hc.rank() in (0, hc.size() - 1):
        peer = hc.size() - 1 - hc.rank()
        try:
            if hc.rank() == 0:
                hc.send(np.zeros(50_000, np.float32), peer)
            else:
                hc.recv(np.zeros(50_001, np.float32), peer)
        except hc.MismatchError as error:
            assert "50000" in str(error) and "50001" in str(error), error
        else:
            raise AssertionError("messages of different sizes matched")
    hc.barrier()


hc.init()
for seed in range(3):
    random_pairs(seed, 40)
for size in (10, 1_000_000):
    ring(size)
if hc.size() > 1:
    mismatch()
print(f"right {hc.rank()}", flush=True)
