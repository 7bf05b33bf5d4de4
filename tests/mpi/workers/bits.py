"""Reduces the same inputs on every backend that folds in rank order, and prints a digest of all results."""

from __future__ import annotations

import functools
import hashlib
import sys

import numpy as np
from common import expect_error, pretend_hosts

pretend_hosts(sys.argv[1] if len(sys.argv) > 1 else "")

import horocache as hc  # noqa: E402

DTYPES = ["float16", "float32", "float64", "complex64", "int32", "uint8"]
COUNTS = [1, 1000, 65_537, 700_001]


def results(backend: str | None) -> bytes:
    digest = hashlib.sha256()
    for dtype in DTYPES:
        for count in COUNTS:
            random = np.random.default_rng([count, hc.rank()])
            values = (random.standard_normal(count) * 1e3).astype(dtype)
            for op in (hc.Sum, hc.Average):
                digest.update(hc.allreduce(values, op=op, backend=backend).tobytes())
            rows = hc.reducescatter(values.reshape(-1, 1), op=hc.Sum, backend=backend)
            digest.update(hc.allgather(rows).tobytes())
            group = [values.copy(), values[::2].copy()]
            for summed in hc.grouped_allreduce_(group, op=hc.Sum, backend=backend):
                digest.update(summed.tobytes())
            total = hc.reduce(values, root_rank=count % hc.size(), op=hc.Sum, backend=backend)
            digest.update(hc.broadcast(values if total is None else total, count % hc.size()).tobytes())
    return digest.digest()


def check_that_other_orders_raise() -> None:
    assert hc.allreduce(np.ones(3, int), op=hc.Sum, backend="mpi/native")[0] == hc.size()
    for algorithm in ("mpi/native", "mpi/twolevel"):
        words = f"{algorithm} does not add in rank order"
        reduce = functools.partial(hc.allreduce, np.ones(3), op=hc.Sum, backend=algorithm)
        expect_error(hc.UnsupportedError, words, reduce)


def main() -> None:
    hc.init()
    digests = {results(None)}
    if hc.cross_size() == 1:
        digests |= {results("shm"), results("mpi")}
    assert len(digests) == 1, "backends differ"
    check_that_other_orders_raise()
    print(f"digest {digests.pop().hex()}", flush=True)


main()
