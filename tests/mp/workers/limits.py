"""Rank 1 has too little of something. usage: limits.py memory-at-init|memory-later|files"""

import os
import resource
import sys
from pathlib import Path

import numpy as np
from common import attempt

import horocache as hc

what, am_poor = sys.argv[1], os.environ["HOROCACHE_RANK"] == "1"


def leave_memory(spare_bytes):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + spare_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if am_poor and what == "memory-at-init":
    from horocache import _core

    leave_memory(8 << 20)
if am_poor and what == "files":
    from horocache import _core  # noqa: F401

    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, highest + 2))
if attempt("init", hc.init) is None:
    rows = np.ones((1 << 20, 8), np.float32)  # 32 MiB here, 96 MiB gathered
    hc.allreduce(np.ones(3, np.float32), op=hc.Sum, name="warm")
    if am_poor and what == "memory-later":
        leave_memory(48 << 20)
    attempt("allgather", lambda: hc.allgather(rows, name="rows"))
    attempt("after", lambda: hc.allreduce(np.ones(3, np.float32), op=hc.Sum, name="after"))
