"""An idle job: what the daemon does and costs while nobody asks for anything."""

from __future__ import annotations

import time

from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank

TITLE = "An idle job of 2 ranks"


def jobs(quick: bool) -> list[Job]:
    """Alone in the process: no peer's threads are counted."""
    return [Job("idle", 2, {"seconds": 3.0 if quick else 10.0}, own_launcher=True)]


def measure(rank: Rank, seconds: float) -> list[Series]:
    """Do some work, then nothing."""
    import torch

    import horocache as hc

    hvd = rank.horocache()
    for _ in range(20):
        hvd.allreduce(torch.ones(1000), name="before the idle time")
    time.sleep(0.5)
    rank.page.barrier()
    before, cpu, begin = hc.metrics(), time.process_time(), time.perf_counter()
    time.sleep(seconds)
    share = (time.process_time() - cpu) / (time.perf_counter() - begin)
    after = hc.metrics()
    rank.page.barrier()
    label = f"{seconds:g} s"
    found = {"rounds": "rounds", "wakeups": "wake-ups", "control_bytes": "control bytes"}
    series = [Series(label, "horocache", unit, [float(after[key] - before[key])]) for key, unit in found.items()]
    return [*series, Series(label, "horocache", "% of a core", [100.0 * share])]
