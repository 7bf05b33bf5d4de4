"""Operations that one round agrees on run by priority; the counters of :func:`horocache.overlap`.

All ranks submit everything before any of them waits, and submissions are collected for up to a second, so that one
round agrees on all of them. Lanes keep the order of plans, which a timeline shows.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from horocache.errors import MismatchError
from horocache.observe.trace import key_of, load_all, paths_of_ranks

from .conftest import run_ranks, submit
from .test_errors import caught
from .test_operations import ALLREDUCE

PRIORITIES = {"a": 1, "b": 4, "c": 3, "d": 5, "e": 2}
STEPS = 3  # the first is negotiated, the others come from the cache


def in_one_round(rank, runtime, met):
    """Run one allreduce for each name, submitted in the rank's own order and agreed on in one round."""
    handles = []
    for name in sorted(PRIORITIES, key=lambda name: (ord(name) * (rank + 2)) % 7):
        array = np.ones(8, np.float32)
        priority = PRIORITIES[name]
        handles.append(submit(runtime, ALLREDUCE, [array], [array], name=name, priority=priority, wait_follows=True))
    met.wait()
    for handle in handles:
        runtime.wait(handle, 60.0)
    met.wait()


def planned(trace):
    """The names of a timeline's operations, in the order in which they were planned."""
    keyed = [(key_of(span), trace.rows[span.row]) for span in trace.spans]
    return [name for _, name in sorted(pair for pair in keyed if pair[0] is not None)]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("threshold", [0, 64, 1 << 20], ids=["one by one", "two by two", "fused"])
def test_what_is_agreed_on_in_one_round_runs_by_priority(size, threshold, tmp_path):
    met = threading.Barrier(size)

    def body(rank, runtime):
        for _ in range(STEPS):
            in_one_round(rank, runtime, met)
        metrics = runtime.metrics()
        return metrics["rounds"], metrics["fused_operations"]

    timeline = tmp_path / "trace.json"
    knobs = {"fusion_threshold": str(threshold), "timeline": str(timeline), "cycle_time": "1000", "inline_max": "0"}
    rounds, plans = zip(*run_ranks(size, body, **knobs), strict=True)
    # A snapshot that was published early may find that another rank has no bits yet, once per step. The rank that reads
    # the counter last may also count the round in which the others leave.
    assert STEPS <= min(rounds) <= 2 * STEPS + 1
    assert list(plans) == [{0: 5, 64: 3, 1 << 20: 1}[threshold] * STEPS] * size
    for trace in load_all(paths_of_ranks(timeline)):
        assert planned(trace) == ["d", "b", "c", "e", "a"] * STEPS, f"rank {trace.rank}"


def test_different_priorities_are_a_mismatch_and_the_job_goes_on():
    def body(rank, runtime):
        array = np.ones(4, np.float32)
        handle = submit(runtime, ALLREDUCE, [array], [array], name="x", priority=rank - 1)
        error = caught(lambda: runtime.wait(handle, 60.0))
        assert isinstance(error, MismatchError), error
        assert "rank 0 submitted priority -1" in str(error)
        assert "rank 1 submitted priority 0" in str(error)
        runtime.wait(submit(runtime, ALLREDUCE, [array], [array], name="x", priority=7), 60.0)
        return array.tolist()

    assert run_ranks(2, body) == [[2.0] * 4] * 2


def test_the_fast_way_of_one_tensor_has_the_same_priority_as_the_other():
    def body(rank, runtime):
        array = np.ones(4, np.float32)
        if rank == 0:
            handle = runtime.allreduce_in_place(array, "x", 1, 1.0, 1.0, False, 0, None, 5)
        else:
            handle = submit(runtime, ALLREDUCE, [array], [array], name="allreduce.x", priority=5)
        runtime.wait(handle, 60.0)
        # The record of an operation is reused, and must not keep the priority.
        runtime.wait(submit(runtime, ALLREDUCE, [array], [array], name="y"), 60.0)
        return array.tolist()

    assert run_ranks(2, body) == [[4.0] * 4] * 2


@pytest.mark.parametrize("priority", [1 << 31, -(1 << 31) - 1, 1 << 40])
def test_the_fast_way_refuses_what_has_more_than_32_bits(priority):
    def body(_, runtime):
        array = np.ones(4, np.float32)
        error = caught(lambda: runtime.allreduce_in_place(array, "x", 1, 1.0, 1.0, False, 0, None, priority))
        assert isinstance(error, OverflowError), error

    run_ranks(1, body)


def test_times_of_lanes_and_waits_are_counted():
    def body(rank, runtime):
        before = runtime.metrics()
        assert before["blocked_ns"] == before["lane_busy_ns"] == before["steps"] == 0
        array = np.ones(1 << 16, np.float32)
        handle = submit(runtime, ALLREDUCE, [array], [array], name="x")
        runtime.wait(handle, 60.0)
        runtime.count_step()
        after = runtime.metrics()
        assert after["lane_busy_ns"] > 0
        assert after["steps"] == 1
        until = time.monotonic() + 30  # the waiting thread may have left the progress thread nothing to do so far
        while runtime.metrics()["coordinator_cpu_ns"] == 0:
            assert time.monotonic() < until
            time.sleep(0.001)
        idle = runtime.metrics()
        assert idle["lane_busy_ns"] == after["lane_busy_ns"], "nothing runs"
        return after["blocked_ns"]

    # The last rank may find its operation complete when it begins to wait, but not every rank can.
    assert any(run_ranks(2, body))


def test_a_wait_for_what_is_over_does_not_count_as_one():
    def body(_, runtime):
        array = np.ones(4, np.float32)
        handle = submit(runtime, ALLREDUCE, [array], [array], name="x")
        while not runtime.poll(handle):
            pass
        runtime.wait(handle, 60.0)
        return runtime.metrics()["blocked_ns"]

    assert run_ranks(2, body) == [0, 0]
