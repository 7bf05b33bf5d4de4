"""Calls init() and prints what it said."""

from __future__ import annotations

import sys

import horocache as hc

if "serialized" in sys.argv:
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI  # noqa: F401
try:
    hc.init()
except hc.HorocacheError as error:
    print(f"refused {type(error).__name__}: {' '.join(str(error).split())}", flush=True)
else:
    print(f"started {hc.rank()} of {hc.size()}", flush=True)
    hc.shutdown()
