"""An idle job: the activity and the cost of the daemon while no rank submits an operation."""

from __future__ import annotations

import time

from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank

TITLE = "An idle job"


def jobs(quick: bool) -> list[Job]:
    """One host, without peers in the process, so that no peer's threads are counted; and 2 hosts with only MPI."""
    seconds = 3.0 if quick else 10.0
    return [
        Job("idle", 2, {"seconds": seconds}, own_launcher=True),
        Job("idle", 4, {"seconds": seconds, "hosts": 2}, needs_mpi=True),
    ]


def measure(rank: Rank, seconds: float, hosts: int = 1) -> list[Series]:
    """Do some work, then idle, and measure this rank's share of a core; leaders of hosts have the largest share."""
    import numpy as np

    import horocache as hc

    if hosts == 1:
        rank.horocache()
    else:
        rank.horocache_as_launched(host_id=f"host {rank.rank * hosts // rank.size}")
    for _ in range(20):
        hc.allreduce(np.ones(1000), name="before the idle time")
    time.sleep(0.5)
    rank.page.barrier()
    before, cpu, begin = hc.metrics(), time.process_time(), time.perf_counter()
    time.sleep(seconds)
    share = (time.process_time() - cpu) / (time.perf_counter() - begin)
    grown = hc.metrics().since(before)
    rank.page.barrier()
    label = f"{seconds:g} s" if hosts == 1 else f"{seconds:g} s, {hosts} hosts over MPI"
    found = {"rounds": "rounds", "wakeups": "wake-ups", "control_bytes": "control bytes"}
    series = [Series(label, "horocache", unit, [float(grown[key])]) for key, unit in found.items()]
    return [*series, Series(label, "horocache", "% of a core", [100.0 * share])]
