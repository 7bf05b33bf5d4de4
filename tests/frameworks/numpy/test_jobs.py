"""NumPy jobs beyond single collectives: objects, names, join, restart, threads, and how calls reach the core."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.core import context
from horocache.testing import run_ranks

from ..bindings import both_bindings


@on_ranks(1, 2, 3, 4)
def test_objects_of_any_type_are_broadcast_and_gathered():
    me = hc.rank()
    for root in range(hc.size()):
        assert hc.broadcast_object({"rank": me, "list": [None, "ü"] * me}, root) == {
            "rank": root,
            "list": [None, "ü"] * root,
        }
    assert hc.allgather_object(("x" * me, me)) == [("x" * r, r) for r in range(hc.size())]
    double = hc.broadcast_object(lambda x: x * 2, name="function")
    assert double(21) == 42
    generator = (i for i in range(3))
    with pytest.raises(ValueError, match=r"rank 0: .*pickle"):
        hc.broadcast_object(generator, 0)
    with pytest.raises(ValueError, match=rf"rank {hc.size() - 1}: .*pickle"):
        hc.allgather_object(generator if me == hc.size() - 1 else 1)
    assert hc.broadcast_object(me, 0) == 0


@on_ranks(2)
def test_names_may_contain_any_character_and_byte():
    for name in ["quo\"te's", "new\nline", "tab\t", "ünïcode", b"\xff\xfe bytes", "\udcff escaped", "x" * 4000, ""]:
        np.testing.assert_array_equal(hc.allreduce(np.ones(2), op=hc.Sum, name=name), np.full(2, hc.size()))
        np.testing.assert_array_equal(hc.allreduce(np.ones(2), op=hc.Sum, name=name), np.full(2, hc.size()))
    with pytest.raises(ValueError, match="UTF-8"):
        hc.allreduce(np.ones(1), name="\ud800")


@on_ranks(3)
def test_joined_ranks_contribute_zeros_until_all_have_joined():
    sums = []
    for step in range(hc.rank() + 1):
        sums.append(float(hc.allreduce(np.float64(1), op=hc.Sum, name=f"step{step}")))
    assert sums == [3.0, 2.0, 1.0][: hc.rank() + 1]
    last = hc.join()
    assert hc.allgather_object(last) == [last] * 3


@on_ranks(3, init=False)
def test_the_runtime_can_be_started_again_after_it_ended():
    for epoch in range(5):
        hc.init()
        hc.init()
        assert hc.is_initialized()
        assert float(hc.allreduce(np.float64(epoch), op=hc.Sum)) == epoch * hc.size()
        hc.shutdown()
        hc.shutdown()
        assert not hc.is_initialized()
        with pytest.raises(ValueError, match="call init"):
            hc.allreduce(np.float64(0))


@on_ranks(3, init=False)
def test_the_runtime_can_be_started_again_at_once_after_a_start_that_failed():
    mine = int(os.environ["HOROCACHE_RANK"])
    for _ in range(10):
        with pytest.raises(ValueError, match="registered already"):  # after the ranks have met
            hc.init(process_sets=[[0, 1], [1, 0]])
        with pytest.raises(hc.HorocacheError, match="cycle_time: '1' on rank 0, '2' on rank 1, '3' on rank 2"):
            hc.init(cycle_time=1 + mine)
        hc.init()
        assert int(hc.allreduce(mine, op=hc.Sum)) == 3
        hc.shutdown()


@on_ranks(24)
def test_twenty_four_processes_connect_and_sum():
    assert (float(hc.allreduce(float(hc.rank()), op=hc.Sum)), hc.allgather(hc.rank()).tolist()) == (
        276.0,
        list(range(24)),
    )


@on_ranks(3, init=False)
def test_shutdown_frees_the_memory_of_the_job():
    def resident_bytes():
        """The resident shared memory and the resident private memory of this process, without what malloc keeps."""
        ctypes.CDLL(None).malloc_trim(0)
        lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        return [int(lines[name].split()[0]) * 1024 for name in ("RssShmem", "RssAnon")]

    found = [resident_bytes()]
    for _ in range(4):
        hc.init(shm_bytes=64 << 20, process_sets=[[0, 1]])
        for count in (3, 20_000_000):
            for made in filter(hc.ProcessSet.included, hc.process_sets()):
                hc.allgather(np.ones(count, np.uint8), name="rows", process_set=made)
            hc.allreduce(np.ones(count, np.uint8), op=hc.Sum, name="x")
        for handle in [hc.allreduce_async(np.ones(1), name=f"t{i}") for i in range(2000)]:
            hc.synchronize(handle)
        during = resident_bytes()
        hc.shutdown()
        found += [during, resident_bytes()]
    before, *rest = found
    during, after = rest[::2], rest[1::2]
    assert all(shared > before[0] for shared, _ in during), found
    assert all(shared == before[0] for shared, _ in after), found
    assert after[3][1] - after[0][1] < 20 << 20, str(found)


@on_ranks(3)
def test_pending_operations_fail_on_all_ranks_when_one_shuts_down():
    hc.barrier()
    if hc.rank() == 2:
        return
    handles = [hc.allreduce_async(np.ones(3), name=f"pending.{i}") for i in range(2)]
    if hc.rank() == 1:
        hc.shutdown()
        for handle in handles:
            with pytest.raises(hc.NotInitializedError, match=r"call init\(\) first"):
                hc.synchronize(handle)
        return
    for number, handle in enumerate(handles):
        with pytest.raises(hc.ShutDownError, match="shut down") as failed:
            hc.synchronize(handle)
        assert f"'allreduce.pending.{number}'" in str(failed.value) and "rank" in str(failed.value)


def test_processes_end_while_operations_are_pending():
    def leave_with_pending_operations():
        hc.init()
        for step in range(20):
            hc.allreduce_async(np.ones(100_000), name=f"t{step}")
        if hc.rank() == 0:
            hc.allreduce_async(np.ones(3), name="of rank 0 alone")
        return "ended"

    outcomes = run_ranks(leave_with_pending_operations, 3, check=False)
    assert [(o.value, o.exit_code) for o in outcomes] == [("ended", 0)] * 3, [o.describe() for o in outcomes]


@on_ranks(2)
def test_one_of_two_threads_that_wait_for_a_handle_gets_the_result():
    handle = hc.allreduce_async(np.ones(3), op=hc.Sum, name="shared")
    answers, refused = [], []

    def wait():
        try:
            answers.append(hc.synchronize(handle))
        except hc.InvalidArgumentError as error:
            refused.append(str(error))

    waiters = [threading.Thread(target=wait) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()
    assert len(answers) == 1 and refused == [f"Handle {handle} was not created or has been cleared."]
    np.testing.assert_array_equal(hc.allreduce(np.ones(3), op=hc.Sum, name="next"), np.full(3, hc.size()))


@both_bindings
@on_ranks(2, init=False)
def test_operations_without_counts_may_follow_operations_with_counts(binding):
    hc.init(binding=binding)
    n, rank = hc.size(), hc.rank()
    for turn in range(3):  # the core reuses the records of operations
        assert hc.allgatherv(np.full(2, rank), recvcounts=[2] * n, displs=[2 * r for r in range(n)]).size == 2 * n
        x = np.ones(5)
        assert hc.allreduce_(x, op=hc.Sum, name="in place")[0] == n
        rows, _ = hc.alltoallv(np.arange(n), sendcounts=[1] * n, recvcounts=[1] * n, sdispls=list(range(n)))
        assert rows.tolist() == [rank] * n
        assert [y[0] for y in hc.grouped_allreduce_([np.ones(2), np.ones(3)], op=hc.Sum, name="group")] == [n, n]
        gathered = hc.gatherv(np.full(1, turn), root_rank=0, recvcounts=[1] * n)
        assert hc.allgather(np.full(rank + 1, turn)).size == n * (n + 1) // 2
        assert (gathered is None) == (rank != 0)


@on_ranks(2, init=False)
def test_only_blocking_calls_announce_that_a_wait_follows():
    class Spy:
        def __getattr__(self, name):
            method = getattr(runtime, name)
            if name == "submit":
                return lambda request: (announced.append(request.wait_follows), method(request))[1]
            index = {"allreduce_in_place": 5, "allreduce_group_in_place": 7}.get(name)
            if index is None:
                return method
            return lambda *arguments: (announced.append(arguments[index]), method(*arguments))[1]

    hc.init()
    runtime, announced = context.current().runtime, []
    context.current().runtime = Spy()
    x, wrong = np.ones(4), []
    with_root = ("broadcast", "reduce", "gather", "scatter")
    for name in hc.__all__:
        kind = name.rstrip("_").removesuffix("_async").removeprefix("grouped_").removesuffix("v")
        if kind not in (*with_root, "allreduce", "allgather", "reducescatter", "alltoall"):
            continue
        announced.clear()
        options = {"root_rank": 0} if kind in with_root else {}
        options |= {"recvcounts": [2, 2]} if name.startswith("reducescatterv") else {}
        options |= {"sendcounts": [2, 2]} if name.startswith("alltoallv") else {}
        answer = getattr(hc, name)([x] if name.startswith("grouped_") else x, **options)
        if "_async" in name:
            hc.synchronize(answer)
        if announced != ["_async" not in name]:
            wrong.append((name, announced[:]))
    assert wrong == []
