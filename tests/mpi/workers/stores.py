"""Sums by stores of every type over MPI: ``stores.py [serialized]``; each rank is on a host of its own."""

from __future__ import annotations

import sys

from common import pretend_hosts

if "serialized" in sys.argv:
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI  # noqa: F401

import numpy as np

import horocache as hc
from horocache import kvstore

pretend_hosts("0123")
hc.init()
for type_ in ("negotiated", "depcha", "concom", "funnel", "dist_sync"):
    store = kvstore.create(type_, blocking=False)
    values = [np.full(1 + 1000 * key, float(key + hc.rank())) for key in range(10)]
    store.init(list(range(10)), values)
    for key, value in enumerate(values):
        store.pushpull(key, value)
    store.wait(*values)
    for key, value in enumerate(values):
        assert (value == sum(key + rank for rank in range(hc.size()))).all(), (type_, key, value)
    print(f"summed {type_} with {store.info['lanes']} lanes, threads {hc.mpi_threads_supported()}", flush=True)
    store.close()
hc.shutdown()
