"""Calls init() and prints the outcome."""

from __future__ import annotations

import sys

from common import expect_error

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
    # Members of a new set create communicators while the daemon uses MPI.
    if hc.mpi_enabled() and not hc.mpi_threads_supported():
        expect_error(hc.UnsupportedError, "HOROCACHE_MPI_THREADS_DISABLE", lambda: hc.add_process_set([0]))
    print(f"started {hc.rank()} of {hc.size()}", flush=True)
    hc.shutdown()
