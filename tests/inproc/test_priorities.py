"""Priorities: the order of the operations that one round agrees on; and the counters of :func:`horocache.overlap`.

All ranks submit all operations before any rank waits, and ranks collect submissions for up to a second, so that one
round agrees on all of them. That is so if they fill no fused operation; tests/cpp/control/fusion_limits_test.cc has the
others. Lanes keep the order of plans, which a timeline shows.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from horocache.errors import MismatchError
from horocache.observe.trace import key_of, load_all, paths_of_ranks

from .conftest import on_ranks, run_ranks
from .operations import caught, finish, submit_sum

PRIORITIES = {"a": 1, "b": 4, "c": 3, "d": 5, "e": 2}
STEPS = 3  # the first is negotiated, the others come from the cache


def reduce_in_one_round(rank, runtime, barrier):
    """Run one allreduce for each name, submitted in the rank's own order and agreed on in one round."""
    handles = []
    for name in sorted(PRIORITIES, key=lambda name: (ord(name) * (rank + 2)) % 7):
        array = np.ones(8, np.float32)
        handles.append(submit_sum(runtime, array, name=name, priority=PRIORITIES[name], wait_follows=True))
    barrier.wait()
    finish(runtime, *handles)
    barrier.wait()


def planned(trace):
    """The names of a timeline's operations, in the order in which they were planned."""
    keyed = [(key_of(span), trace.rows[span.row]) for span in trace.spans]
    return [name for _, name in sorted(pair for pair in keyed if pair[0] is not None)]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("threshold", [0, 1 << 20], ids=["one by one", "fused"])
def test_operations_that_one_round_agrees_on_run_by_priority(size, threshold, tmp_path):
    barrier = threading.Barrier(size)

    def train(rank, runtime):
        for _ in range(STEPS):
            reduce_in_one_round(rank, runtime, barrier)
        metrics = runtime.metrics()
        return metrics["rounds"], metrics["fused_operations"]

    timeline = tmp_path / "trace.json"
    knobs = {"fusion_threshold": str(threshold), "timeline": str(timeline), "cycle_time": "1000", "inline_max": "0"}
    rounds, plans = zip(*run_ranks(size, train, **knobs), strict=True)
    # A snapshot that was published early may find that another rank has no bits yet, once per step. The rank that reads
    # the counter last may also count the round in which the others leave.
    assert STEPS <= min(rounds) <= 2 * STEPS + 1
    assert list(plans) == [{0: 5, 1 << 20: 1}[threshold] * STEPS] * size
    for trace in load_all(paths_of_ranks(timeline)):
        assert planned(trace) == ["d", "b", "c", "e", "a"] * STEPS, f"rank {trace.rank}"


@on_ranks(2)
def test_different_priorities_are_a_mismatch_and_the_job_goes_on(rank, runtime):
    array = np.ones(4, np.float32)
    handle = submit_sum(runtime, array, name="x", priority=rank - 1)
    error = caught(lambda: finish(runtime, handle))
    assert isinstance(error, MismatchError), error
    assert "rank 0 submitted priority -1" in str(error)
    assert "rank 1 submitted priority 0" in str(error)
    finish(runtime, submit_sum(runtime, array, name="x", priority=7))
    assert array.tolist() == [2.0] * 4


@on_ranks(2)
def test_the_fast_path_and_the_general_path_submit_the_same_priority(rank, runtime):
    array = np.ones(4, np.float32)
    if rank == 0:
        handle = runtime.allreduce_in_place(array, "x", 1, 1.0, 1.0, False, 0, None, 5)
    else:
        handle = submit_sum(runtime, array, name="allreduce.x", priority=5)
    finish(runtime, handle)
    # The record of an operation is reused, and must not keep the priority.
    finish(runtime, submit_sum(runtime, array, name="y"))
    assert array.tolist() == [4.0] * 4


@pytest.mark.parametrize("priority", [1 << 31, -(1 << 31) - 1, 1 << 40])
@on_ranks(1)
def test_the_fast_path_refuses_priorities_of_more_than_32_bits(rank, runtime, priority):
    array = np.ones(4, np.float32)
    error = caught(lambda: runtime.allreduce_in_place(array, "x", 1, 1.0, 1.0, False, 0, None, priority))
    assert isinstance(error, OverflowError), error


def test_busy_times_of_lanes_and_times_of_waits_are_counted():
    def train(rank, runtime):
        before = runtime.metrics()
        assert before["blocked_ns"] == before["lane_busy_ns"] == before["steps"] == 0
        finish(runtime, submit_sum(runtime, np.ones(1 << 16, np.float32), name="x"))
        runtime.count_step()
        after = runtime.metrics()
        assert after["lane_busy_ns"] > 0
        assert after["steps"] == 1
        until = time.monotonic() + 30  # the waiting thread may have left the progress thread nothing to do so far
        while runtime.metrics()["progress_cpu_ns"] == 0:
            assert time.monotonic() < until
            time.sleep(0.001)
        idle = runtime.metrics()
        assert idle["lane_busy_ns"] == after["lane_busy_ns"], "an idle lane counts as busy"
        return after["blocked_ns"]

    # The last rank may find its operation complete when it begins to wait, but not every rank can.
    assert any(run_ranks(2, train))


@on_ranks(2)
def test_a_wait_for_a_completed_operation_is_not_counted(rank, runtime):
    handle = submit_sum(runtime, np.ones(4, np.float32), name="x")
    while not runtime.poll(handle):
        pass
    finish(runtime, handle)
    assert runtime.metrics()["blocked_ns"] == 0
