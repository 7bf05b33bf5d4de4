"""Key-value stores over MPI."""

from __future__ import annotations

import pytest
from mpi_jobs import run_worker


@pytest.mark.parametrize("serialized", [False, True])
def test_k8_lanes_of_a_store_need_no_threads_of_mpi(serialized):
    """No thread of a store calls MPI, whatever thread level the program has asked for."""
    arguments = ["serialized"] if serialized else []
    job = run_worker("stores", 2, *arguments, env={"HOROVOD_MPI_THREADS_DISABLE": "1"} if serialized else {})
    lines = sorted(job.lines("summed "))
    lanes = {"negotiated": 0, "depcha": 1, "concom": 2, "funnel": 1, "dist_sync": 0}
    expected = [f"{type_} with {count} lanes, threads {not serialized}" for type_, count in lanes.items()]
    assert lines == sorted(2 * expected), job.report()
