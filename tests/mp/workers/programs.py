"""Allreduces that the selector assigns to compiled programs. usage: programs.py [slow|flat]"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from common import publish, report
from memory import allocated_kib

import horocache as hc

how = sys.argv[1] if len(sys.argv) > 1 else "plain"
hc.init()
ranks, rank = hc.size(), hc.rank()


def check(count: int, name: str) -> None:
    values = np.arange(count, dtype=np.float32) + rank
    total = hc.allreduce(values, op=hc.Sum, name=name)
    np.testing.assert_array_equal(total, ranks * np.arange(count) + ranks * (ranks - 1) / 2)


def resources() -> dict[str, int]:
    """The allocated memory of this process, its mappings and its descriptors."""
    own = Path("/proc/self")
    mappings = len((own / "maps").read_text().splitlines())
    return {"allocated_kib": allocated_kib(), "mappings": mappings, "descriptors": len(list((own / "fd").iterdir()))}


if how == "slow":  # one rank is stopped from outside, in the middle
    check(1 << 20, "before")
    publish(f"pid{rank}", str(os.getpid()))
    for step in range(40):
        check(1 << 18, f"large{step % 4}")
        time.sleep(0.02)
elif how == "flat":
    for step in range(300):
        check(16, f"small{step % 8}")
    before = resources()
    for step in range(int(os.environ["HC_TEST_OPERATIONS"])):
        check(16, f"small{step % 8}")
    report("memory", **{name: value - before[name] for name, value in resources().items()})
else:
    for count in (1, 1000, 100_000):
        check(count, f"of{count}")
report("programs", ran=hc.metrics()["program_operations"], operations=hc.metrics()["operations"])
hc.shutdown()
