"""Ranks wait for different things. usage: waits.py SCENARIO"""

import ctypes
import os
import sys
import threading
import time

import numpy as np
from common import SCRATCH, allreduce_and_check, attempt, await_file, job, publish, report, together

import horocache as hc


def one():
    return np.ones(3, np.float32)


def wait_for_an_error(submit):
    """Submit, and wait when all ranks have submitted, so that the errors do not depend on the order of submission."""
    handle = submit()
    together("submitted")
    attempt("wait", lambda: hc.synchronize(handle))
    together("failed")
    attempt("after", lambda: allreduce_and_check("after"))


def certain_deadlock():
    """Rank 0 waits for an operation that the others never submit, and the others for one that rank 0 never submits."""
    name = "mine" if hc.rank() == 0 else "theirs"
    wait_for_an_error(lambda: hc.allreduce_async(one(), op=hc.Sum, name=name))


def circle_of_two():
    """Ranks 0 and 1 wait for each other; the others compute until these two have failed."""
    if hc.rank() < 2:
        attempt("wait", lambda: hc.allreduce(one(), op=hc.Sum, name=f"turn.{hc.rank()}"))
        publish(f"failed.{hc.rank()}")
    else:
        for rank in range(2):
            await_file(f"failed.{rank}")
    attempt("after", lambda: allreduce_and_check("after"))


def circle_for_a_while():
    """Each rank waits for its own name, with a time limit; then all ranks submit all names."""
    names = [f"turn.{rank}" for rank in range(hc.size())]
    mine = names[hc.rank()]
    handles = {mine: hc.allreduce_async(one(), op=hc.Sum, name=mine)}
    together("submitted")
    attempt("wait", lambda: hc.synchronize(handles[mine], timeout=1.0))
    together("given up")
    for name in names:
        if name != mine:
            handles[name] = hc.allreduce_async(one(), op=hc.Sum, name=name)
    attempt("all", lambda: [hc.synchronize(handles[name]) for name in names])
    attempt("after", lambda: allreduce_and_check("after"))


def threads_that_come_late():
    """Two threads on each rank, crossed; the thread that would end the wait has not submitted anything yet."""

    def work(names, before=lambda: None):
        before()
        for name in names:
            attempt(name, lambda name=name: allreduce_and_check(name))

    def compute():
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            pass

    def both(of_thread, of_main):
        thread = threading.Thread(target=work, args=of_thread)
        thread.start()
        work(*of_main)
        thread.join()

    if hc.rank() == 0:
        both((["early.1"],), (["late.1"], lambda: time.sleep(1.5)))  # the main thread sleeps like one that loads data
        work(["early.2", "late.2"])
    else:
        work(["late.1", "early.1"])
        both((["early.2"], compute), (["late.2"],))


def circle():
    """Each rank waits for its own name: a circle of all ranks. A thread that has ended cannot break it."""
    helper = threading.Thread(target=lambda: allreduce_and_check("before"))
    helper.start()
    helper.join()
    wait_for_an_error(lambda: hc.allreduce_async(one(), op=hc.Sum, name=f"turn.{hc.rank()}"))


def crossed():
    """All ranks submit all names, then wait in different orders, which always ends."""
    names = [f"crossed.{i}" for i in range(6)]
    order = names[hc.rank() :] + names[: hc.rank()]
    handles = {name: hc.allreduce_async(one() * (names.index(name) + 1), op=hc.Sum, name=name) for name in order}
    for name in reversed(order):
        result = hc.synchronize(handles[name])
        assert result[0] == (names.index(name) + 1) * hc.size(), name
    report("crossed", ok=True)


def some_ranks_only():
    """Rank 0 submits and waits; the other ranks do not submit within the limit."""
    if hc.rank() == 0:
        attempt("wait", lambda: hc.allreduce(one(), op=hc.Sum, name="lonely"))
        publish("failed")
    else:
        await_file("failed")
    attempt("after", lambda: allreduce_and_check("after"))


def absent_in_native_code():
    """Rank 1 holds the GIL in native code, so that it runs no Python code."""
    if hc.rank() == 1:
        keep_the_lock()
    attempt("wait", lambda: hc.allreduce(one(), op=hc.Sum, name="lonely"))


def keep_the_lock():
    publish("pid", str(os.getpid()))
    libc = ctypes.PyDLL(None)  # keeps the GIL, unlike CDLL and Path.exists()
    while libc.access(bytes(SCRATCH / "go on"), os.F_OK) != 0:
        libc.usleep(200_000)


def failing():
    """Errors that the job survives, several times."""
    allreduce_and_check("before")
    for turn in range(3):
        attempt(f"mismatch.{turn}", lambda: hc.allreduce(np.ones(1 + hc.rank(), np.float32), name="bad"))
    attempt("after", lambda: allreduce_and_check("after"))


def failing_for_good():
    """An error that the program does not catch."""
    hc.allreduce(np.ones(1 + hc.rank(), np.float32), name="bad")


def late():
    """Rank 0 waits; the others submit after a stall report, but before the limit: no error."""
    if hc.rank() != 0:
        await_file("reported")
    attempt("wait", lambda: allreduce_and_check("late"))


def bad_splits_on_one_rank():
    """Rank 1 gives invalid splits and goes on to another operation, and the others wait for its alltoall."""
    rows = np.ones((3, 1), np.float32)
    if hc.rank() == 1:
        attempt("mistake", lambda: hc.alltoall_async(rows, splits=[9, 9, 9], name="x"))
        wait_for_an_error(lambda: hc.allreduce_async(one(), op=hc.Sum, name="other"))
    else:
        wait_for_an_error(lambda: hc.alltoall_async(rows, splits=[1, 1, 1], name="x"))


def interrupted():
    """Rank 0 waits without end; the others never submit."""
    publish(f"ready.{hc.rank()}")
    if hc.rank() == 0:
        hc.allreduce(one(), op=hc.Sum, name="never")
    else:
        await_file("never")


with job():
    {
        "certain-deadlock": certain_deadlock,
        "threads-that-come-late": threads_that_come_late,
        "circle": circle,
        "circle-of-two": circle_of_two,
        "circle-for-a-while": circle_for_a_while,
        "crossed": crossed,
        "some-ranks-only": some_ranks_only,
        "late": late,
        "absent-in-native-code": absent_in_native_code,
        "failing": failing,
        "failing-for-good": failing_for_good,
        "bad-splits-on-one-rank": bad_splits_on_one_rank,
        "interrupted": interrupted,
    }[sys.argv[1]]()
