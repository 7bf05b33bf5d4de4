"""Rank 1 lacks a resource. usage: limits.py memory-at-init|memory-later|files|files-later|threads.N"""

import os
import resource
import sys
from pathlib import Path

import numpy as np
from common import attempt, await_file, publish

import horocache as hc

what, limited = sys.argv[1], os.environ["HOROCACHE_RANK"] == "1"


def leave_memory(spare_bytes):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + spare_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def leave_files(spare):
    found = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    taken = {number for number in found if Path(f"/proc/self/fd/{number}").exists()}  # not that of the listing
    free = [number for number in range(max(taken) + spare + 2) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def total(name):
    assert hc.allreduce(np.ones(3, np.float32), op=hc.Sum, name=name)[0] == hc.size()


def memory_later():
    rows = np.ones((1 << 20, 8), np.float32)  # 32 MiB here, 64 MiB gathered
    total("warm")
    if limited:
        leave_memory(48 << 20)
    attempt("allgather", lambda: hc.allgather(rows, name="rows"))


def files_later():
    had = resource.getrlimit(resource.RLIMIT_NOFILE)
    total("warm")
    if limited:
        leave_files(2)
    attempt("add", lambda: hc.add_process_set([0, 1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, had)
    attempt("again", lambda: hc.barrier(process_set=hc.add_process_set([0, 1])))


if limited:
    from horocache import _core  # noqa: F401  (loaded while there is memory, and there are files)

    if what == "memory-at-init":
        leave_memory(8 << 20)
    elif what == "files":
        leave_files(2)
    elif what.startswith("threads."):  # memory for N threads, each with a stack as large as the limit
        leave_memory((2 << 30) + int(what.removeprefix("threads.")) * resource.getrlimit(resource.RLIMIT_STACK)[0])
if attempt("init", hc.init) is None:
    if what == "memory-later":
        memory_later()
    elif what == "files-later":
        files_later()
    attempt("after", lambda: total("after"))
    publish(f"after.{hc.rank()}")
elif what.startswith("threads."):
    await_file("after.0")  # the other ranks must not notice the end of this process instead
