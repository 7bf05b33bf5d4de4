"""Compiled programs between simulated hosts. usage: programs.py LAYOUT conform | allreduce NAME..."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from common import pretend_hosts

LAYOUT, WHAT, *NAMES = sys.argv[1:]
pretend_hosts(LAYOUT)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))

from cases import CASES  # noqa: E402
from run_cases import KNOBS  # noqa: E402

import horocache as hc  # noqa: E402

COUNTS = [1, 5, 300, 4_099, 70_001, 700_003]


def conform() -> None:
    """Run the conformance cases of every operation, as for the other backends."""
    assert all(case(hc, "program") > 0 for case in CASES.values())


def allreduce() -> None:
    """Run each program, beside operations of another backend and of a process set."""
    last = hc.size() - 1
    for name in NAMES:
        for count in COUNTS:
            for dtype in ("int64", "float32", "float16"):
                base = np.arange(count) % 5
                mine = (base + hc.rank()).astype(dtype)
                largest = hc.allreduce_async(mine, op=hc.Max, name="other", backend="mpi")
                total = hc.allreduce(mine, op=hc.Sum, name="x", backend=f"program/{name}")
                np.testing.assert_array_equal(total, base * hc.size() + sum(range(hc.size())), err_msg=name)
                np.testing.assert_array_equal(hc.synchronize(largest), base + last)
                if ends.included():
                    both = hc.allreduce(mine, op=hc.Sum, name="ends", process_set=ends, backend="program")
                    np.testing.assert_array_equal(both, 2 * base + last)


hc.init(**KNOBS, programs_any_order=True)
ends = hc.add_process_set([0, hc.size() - 1]) if hc.size() > 2 else hc.global_process_set
before = hc.metrics()["program_operations"]
{"conform": conform, "allreduce": allreduce}[WHAT]()
print(f"ran {hc.metrics()['program_operations'] - before}", flush=True)
hc.shutdown()
