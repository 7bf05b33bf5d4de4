"""An idle job: what the daemon does and costs while nobody asks for anything."""

from __future__ import annotations

import time

from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank

TITLE = "An idle job"


def jobs(quick: bool) -> list[Job]:
    """On one host alone in the process, so that no peer's threads are counted; and as 2 hosts that know MPI alone."""
    seconds = 3.0 if quick else 10.0
    return [
        Job("idle", 2, {"seconds": seconds}, own_launcher=True),
        Job("idle", 4, {"seconds": seconds, "hosts": 2}, needs_mpi=True),
    ]


def measure(rank: Rank, seconds: float, hosts: int = 1) -> list[Series]:
    """Do some work, then nothing; of several hosts every rank's share counts, those of leaders most."""
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
    after = hc.metrics()
    rank.page.barrier()
    label = f"{seconds:g} s" if hosts == 1 else f"{seconds:g} s, {hosts} hosts over MPI"
    found = {"rounds": "rounds", "wakeups": "wake-ups", "control_bytes": "control bytes"}
    series = [Series(label, "horocache", unit, [float(after[key] - before[key])]) for key, unit in found.items()]
    return [*series, Series(label, "horocache", "% of a core", [100.0 * share])]
