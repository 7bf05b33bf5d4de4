"""Repeated init() and shutdown(), forks in between, idle jobs. usage: lifetimes.py SCENARIO"""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from common import allreduce_and_check, attempt, job, report, together
from memory import allocated_kib

import horocache as hc


def entries(kind: str) -> int:
    return len(list(Path("/proc/self", kind).iterdir()))


def threads_left() -> int:
    """The number of threads. Python drops a joined thread a moment before the system does, so wait for that."""
    limit = time.monotonic() + 2
    while entries("task") > threading.active_count() and time.monotonic() < limit:
        time.sleep(0.001)
    return entries("task")


def mappings() -> tuple[int, int]:
    """The numbers of all mappings, and of those of files, which include shared memory."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len(lines), sum(line.split()[4] != "0" for line in lines)


def again(times):
    """Start and end the job many times, with varying process sets; every fifth turn also adds and removes a set."""
    sets = ([], [[0, 1]], [[1, 2], [0]], [[0, 2]])
    counts, memory, mapped = [], [], []
    for turn in range(times):
        with job(process_sets=sets[turn % len(sets)]):
            allreduce_and_check("x", 100, turn + 1)
            added = [hc.add_process_set([2])] if turn % 5 == 0 else []
            for made in hc.process_sets()[1:]:
                if made.included():
                    assert hc.allreduce(np.ones(3), op=hc.Sum, process_set=made)[0] == made.size()
            assert all(hc.remove_process_set(made) for made in added)
        every, of_files = mappings()
        counts.append([entries("fd"), threads_left(), of_files])
        memory.append(allocated_kib())
        mapped.append(every)
    grown = {"grown_kib": memory[-1] - memory[19], "mappings": mapped[-1] - mapped[19]}
    report("again", first=counts[4], last=counts[-1], **grown)


def knobs():
    attempt("unknown", lambda: hc.init(cycle_tme=2))
    attempt("bad", lambda: hc.init(cache_capacity="many"))
    attempt("before", lambda: hc.allreduce(np.ones(3)))
    with job(cycle_time=2):
        attempt("twice", hc.init)
        attempt("other", lambda: hc.init(cycle_time=3))
        allreduce_and_check("x")
    attempt("after", lambda: hc.allreduce(np.ones(3)))


def descriptors():
    """The files that this process has open, as the kernel names them, except the listing's own descriptor."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(str(path.readlink()))
    return sorted(links)


def in_child(before_init):
    for what, action in {
        "allreduce": lambda: hc.allreduce(np.ones(3)),
        "submit": lambda: hc.allreduce_async_(np.ones(3), name="y"),
        "abort": lambda: hc.abort("x"),
        "barrier": hc.barrier,
        "join": hc.join,
        "init": hc.init,
        "metrics": hc.metrics,
        "sets": lambda: hc.add_process_set([0]),
    }.items():
        attempt(f"child-{what}", action)
    hc.shutdown()  # has no effect in the child
    kept = [link for link in descriptors() if link not in before_init and "pipe:" not in link]
    report("child-kept", links=kept, rank=[hc.is_initialized(), hc.rank(), hc.size()])


def fork():
    before_init = descriptors()
    with job():
        allreduce_and_check("x")
        counts = len(descriptors())
        # The child gets a copy of an operation in flight.
        pending = hc.allreduce_async(np.ones(100_000), op=hc.Sum, name="pending")
        child = multiprocessing.get_context("fork").Process(target=in_child, args=(before_init,))
        child.start()
        child.join(20)
        report("child-exit", code=child.exitcode)
        child.close()
        assert hc.synchronize(pending)[0] == hc.size()
        for how in (os._exit, lambda _: os.kill(os.getpid(), 9), sys.exit):
            if (pid := os.fork()) == 0:
                how(0)
            os.waitpid(pid, 0)
        for step in range(1000):
            allreduce_and_check(f"x.{step % 3}")
        report("parent", files=len(descriptors()) - counts)


def started():
    """A rank starts programs: with its environment, as a job of one rank, and after its own job."""
    program = "import horocache as hc\nhc.init()\nprint(hc.rank(), hc.size())"

    def start(**more):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=60, check=False)
        return (done.stdout + done.stderr).strip().splitlines()[-1]

    with job():
        own = [hc.rank(), hc.size(), os.getpid()]
        report(
            "in-the-job",
            own=own,
            inner=start() if hc.rank() else "",
            alone=start(HOROCACHE_RANK="0", HOROCACHE_SIZE="1"),
        )
    report("after-it", own=own, inner=start())


def idle():
    with job():
        for step in range(20):
            allreduce_and_check(f"x.{step % 3}")
        hc.barrier()
        settled = None
        while settled != (settled := hc.metrics()["rounds"]):  # the barrier's own round may be counted late
            time.sleep(0.5)
        before = hc.metrics()
        time.sleep(1.0)
        after = hc.metrics()
        together("counted")  # a rank that leaves starts a round on the others
        report(
            "idle",
            rounds=after["rounds"] - before["rounds"],
            control_bytes=after["control_bytes"] - before["control_bytes"],
        )


def threads():
    """Several threads of each rank use the job at once."""
    with job():
        errors = []
        started = threading.Barrier(4)

        def run(number):
            try:
                # A rank counts as waiting if all threads that ever submitted wait, so no thread waits before all have
                # submitted.
                first = hc.allreduce_async(np.ones(3), op=hc.Sum, name=f"first.{number}")
                started.wait(20)
                hc.synchronize(first)
                for step in range(30):
                    allreduce_and_check(f"thread.{number}.{step % 3}", 50)
            except BaseException as error:
                report("thread-error", number=number, text=repr(error))
                errors.append(repr(error))
                hc.abort(repr(error))

        running = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        report("threads", errors=errors)


{
    "again": lambda: again(int(sys.argv[2])),
    "knobs": knobs,
    "fork": fork,
    "started": started,
    "idle": idle,
    "threads": threads,
}[sys.argv[1]]()
