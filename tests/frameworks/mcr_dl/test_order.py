"""M7, M8 and M11 on one host: ranks in different orders, calls without names, ranks that differ.

The same with MPI beside shared memory is in tests/mpi.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
import horocache.mcr_dl as mcr_dl
from horocache.testing import run_ranks

from . import schedules


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_m7_m8_random_schedules_with_the_ranks_in_different_orders(ranks):
    ways = ["shm", "shm/oneshot", "auto", "shm/twoshot"]
    run_ranks(schedules.run, ranks, args=(["shm"], ways, 40), timeout=110)


@on_ranks(3, init=False)
def test_calls_without_a_name_count_for_each_backend_and_group_separately():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    group = mcr_dl.new_group()  # the same ranks, another sequence
    calls = [("shm", None), ("shm/oneshot", None), ("shm", group), ("auto", None), (["shm", "shm/oneshot"], None)]
    for step in range(20):
        order = random.Random(step * 7 + rank).sample(range(len(calls)), len(calls))
        tensors = [np.full(3, float(rank + 10 * number)) for number in range(len(calls))]
        handles = [
            mcr_dl.all_reduce(calls[each][0], tensors[each], async_op=True, group=calls[each][1]) for each in order
        ]
        for handle in handles:
            handle.wait()
        assert [tensor[0] for tensor in tensors] == [3.0 + 30 * number for number in range(len(calls))]
    before = hc.metrics()
    for _ in range(3):
        for backend, of in calls:
            mcr_dl.all_reduce(backend, np.ones(3), group=of)
    assert hc.metrics().since(before)["operations"] == 15
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_a_training_step_runs_from_the_cache():
    mcr_dl.init("shm")
    layers = [np.ones(size, np.float32) for size in range(1, 60)] + [np.ones(7, np.int64)]
    sent = np.ones(8)

    def step():
        handles = [mcr_dl.all_reduce("shm", layer, async_op=True) for layer in layers]
        mcr_dl.all_to_all_single("auto", sent, sent)
        mcr_dl.bcast("shm", sent, 1)
        for handle in handles:
            handle.wait()

    for _ in range(20):
        step()
    before = hc.metrics()
    for _ in range(10):
        step()
    since = hc.metrics().since(before)
    assert since["cache_misses"] + since["cache_changed"] <= 0.02 * 10 * (len(layers) + 2), since
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m7_many_more_calls_in_flight_than_names_do_not_stop_a_rank_from_using_another_backend():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    tensors, other = [np.ones(2) for _ in range(700)], np.ones(2)
    if rank == 0:
        handles = [mcr_dl.all_reduce("shm", tensor, async_op=True) for tensor in tensors]
        mcr_dl.all_reduce("auto", other)  # the other rank waits for this one before it begins with its 700
    else:
        mcr_dl.all_reduce("auto", other)
        for tensor in tensors:
            mcr_dl.all_reduce("shm", tensor)
        handles = []
    for handle in handles:
        handle.wait()
    mcr_dl.synchronize()
    assert other.tolist() == [2.0, 2.0] and all(tensor.tolist() == [2.0, 2.0] for tensor in tensors)
    mcr_dl.finalize()


@on_ranks(3, init=False)
def test_named_operations_meet_in_any_order_across_backends_and_operations():
    mcr_dl.init("shm")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_size()
    results = {}

    def reduce():
        results["sum"] = np.full(2, float(rank))
        return mcr_dl.all_reduce("shm/oneshot", results["sum"], name="größe", async_op=True)

    def gather():
        results["all"] = np.zeros(size)
        return mcr_dl.all_gather("auto", results["all"], np.full(1, float(rank)), name=b"\xff", async_op=True)

    def copy():
        results["root"] = np.full(2, float(rank))
        return mcr_dl.bcast(["shm"], results["root"], 2, name=7, async_op=True)

    calls = [reduce, gather, copy]
    for step in range(30):
        order = random.Random(step + 100 * rank).sample(calls, 3)
        for handle in [call() for call in order]:
            handle.wait()
        assert results["sum"][0] == 3 and results["all"].tolist() == [0, 1, 2] and results["root"][0] == 2
    handle = mcr_dl.all_reduce("shm", np.ones(2), name="twice", async_op=True) if rank else None
    if rank:
        with pytest.raises(hc.DuplicateNameError, match="twice"):
            mcr_dl.all_reduce("shm", np.ones(2), name="twice")
    mcr_dl.barrier()
    if rank == 0:
        mcr_dl.all_reduce("shm", np.ones(2), name="twice")
    else:
        handle.wait()
    mcr_dl.finalize()


@on_ranks(3, init=False)
def test_m11_calls_that_differ_fail_on_all_ranks_and_name_both_ranks_and_both_values():
    mcr_dl.init("shm")
    rank, ones = mcr_dl.get_rank(), np.ones
    last = rank == 2

    def other_op():
        return mcr_dl.bcast("shm", ones(4), 0) if last else mcr_dl.all_reduce("shm", ones(4))

    cases = {
        r"rank \d submitted operation \w+, rank \d submitted operation \w+": other_op,
        r"submitted operation allgather, rank \d .*barrier|barrier, rank \d .*allgather": lambda: (
            mcr_dl.barrier("shm") if last else mcr_dl.all_gather("shm", ones(3), ones(1))
        ),
        r"rank \d submitted shape \[\d\], rank \d submitted shape \[\d\]": lambda: mcr_dl.all_reduce(
            "shm", ones(3 + last)
        ),
        r"submitted dtype \w+, rank \d submitted dtype": lambda: mcr_dl.all_reduce(
            "shm", ones(4, np.int64 if last else np.float64)
        ),
        r"submitted reduce op \w+, rank": lambda: mcr_dl.all_reduce(
            "shm", ones(4), mcr_dl.ReduceOp.MAX if last else mcr_dl.ReduceOp.SUM
        ),
        r"submitted root \d, rank \d submitted root \d": lambda: mcr_dl.bcast("shm", ones(4), int(last)),
        r"submitted shape \[\*, \d\], rank \d submitted shape \[\*, \d\]": lambda: mcr_dl.all_gather(
            "shm", ones(3 * (2 + last)), ones(2 + last)
        ),
        r"submitted shape \[\*, 5\], rank|submitted shape \[\*, 4\], rank": lambda: mcr_dl.gather(
            "shm", ones(12) if rank == 0 else ones(4 + last), 0
        ),
        r"submitted shape \[\*, 3\], rank|submitted shape \[\*, 2\], rank ": lambda: mcr_dl.scatter(
            "shm", ones(6) if rank == 0 else ones(2 + last), 0
        ),
        r"rank \d.* rank \d": lambda: mcr_dl.all_gatherv("shm", ones(9), 0, [2, 2, 2 + last], input=ones(2 + last)),
    }
    for words, call in cases.items():
        for _ in range(2):  # also when the name is in the cache
            with pytest.raises(hc.MismatchError, match=words):
                call()
            tensor = ones(2)
            mcr_dl.all_reduce("shm", tensor)  # the ranks still agree on which call is next
            assert tensor.tolist() == [3.0, 3.0]
    mcr_dl.finalize()


@on_ranks(3, init=False)
def test_m11_a_rank_that_went_on_after_a_mismatch_is_told_and_other_sequences_go_on():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    different = mcr_dl.all_reduce("shm", np.ones(2 + (rank == 1)), async_op=True)
    after = mcr_dl.all_reduce("shm", np.ones(5), async_op=True)
    with pytest.raises(hc.MismatchError, match="submitted shape"):
        different.wait()
    after.wait()
    with pytest.raises(hc.MismatchError, match=r"differed between ranks in call 1, .* another group"):
        mcr_dl.all_reduce("shm", np.ones(5))
    tensor = np.ones(2)
    mcr_dl.all_reduce("shm", tensor, name="named")
    mcr_dl.all_reduce("auto", tensor)
    mcr_dl.all_reduce("shm", tensor, group=mcr_dl.new_group())
    assert tensor.tolist() == [27.0, 27.0]
    mcr_dl.finalize()


def test_m11_an_operation_that_one_rank_does_not_call_fails_in_time(tmp_path):
    def run(flag):
        mcr_dl.init("shm")
        if mcr_dl.get_rank() == 0:
            with pytest.raises(hc.StallError, match=r"mcr_dl/shm.*rank 1"):
                mcr_dl.all_reduce("shm", np.ones(3))
            flag.touch()
        limit = time.monotonic() + 50
        while not flag.exists() and time.monotonic() < limit:
            time.sleep(0.01)
        mcr_dl.finalize()

    limits = {"stall_check_time_seconds": 0.5, "stall_shutdown_time_seconds": 2}
    run_ranks(run, 2, args=(tmp_path / "done",), knobs=limits)


@on_ranks(2, init=False)
def test_m11_ranks_that_wait_for_operations_that_the_other_never_calls_fail_at_once():
    mcr_dl.init("shm")
    mine, others = ("a", "b") if mcr_dl.get_rank() == 0 else ("b", "a")
    with pytest.raises(hc.StallError, match=rf"mcr_dl\.{mine}(?s:.*)mcr_dl\.{others}"):
        mcr_dl.all_reduce("shm", np.ones(3), name=mine)
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_threads_count_separately_and_a_pools_second_operation_is_refused():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    results = {}

    def work(base):
        tensors = [np.full(2, float(base + rank)) for _ in range(50)]
        for tensor in tensors:
            mcr_dl.all_reduce("shm", tensor)
        results[base] = tensors

    threads = [threading.Thread(target=work, args=(base,), name=f"worker {base}") for base in (10, 20, 30)]
    for thread in threads if rank else threads[::-1]:
        thread.start()
    work(0)
    for thread in threads:
        thread.join(60)
    for base, tensors in results.items():
        assert all(tensor.tolist() == [2 * base + 1.0] * 2 for tensor in tensors), base
    assert len(results) == 4

    def alike(until):
        with pytest.raises(hc.InvalidArgumentError, match="both call operations without a name"):
            mcr_dl.all_reduce("shm", np.ones(2))
        until.set()

    until, first = threading.Event(), threading.Event()

    def owner():
        mcr_dl.all_reduce("shm", np.ones(2))
        first.set()
        until.wait(60)

    same = threading.Thread(target=owner, name="same")
    same.start()
    first.wait(60)
    second = threading.Thread(target=alike, args=(until,), name="same")
    second.start()
    second.join(60)
    same.join(60)
    with ThreadPoolExecutor(1) as pool:
        tensor = np.ones(2)
        pool.submit(mcr_dl.all_reduce, "shm", tensor).result(60)
        assert tensor.tolist() == [2.0, 2.0]

        def two():
            handle = mcr_dl.all_reduce("shm", np.ones(2), async_op=True)
            with pytest.raises(hc.DuplicateNameError):
                mcr_dl.all_reduce("shm", np.ones(2), async_op=True)
            return handle

        if rank == 0:
            handle = pool.submit(two).result(60)
            mcr_dl.send("shm", np.zeros(1), 1)
            handle.wait()
        else:
            mcr_dl.recv("shm", np.zeros(1), 0)
            pool.submit(mcr_dl.all_reduce, "shm", np.ones(2)).result(60)
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m7_compressed_calls_without_a_name_wait_until_their_names_are_free():
    mcr_dl.init("shm")
    rank, number = mcr_dl.get_rank(), 300  # more calls than there are names
    if rank == 1:
        mcr_dl.recv("shm", np.zeros(1), 0)  # rank 0 has made all its calls
    tensors = [np.full(4, rank + each % 5, np.float32) for each in range(number)]
    works = [mcr_dl.all_reduce("shm", x, async_op=True, compression=hc.Compression.fp16) for x in tensors]
    if rank == 0:
        mcr_dl.send("shm", np.zeros(1), 1)
    for work in works:
        work.wait(60)
    assert [x.tolist() for x in tensors] == [[1 + 2 * (each % 5)] * 4 for each in range(number)]
    mcr_dl.finalize()


@on_ranks(1, init=False)
def test_all_reduce_without_a_backend_refuses_what_has_no_place():
    mcr_dl.init()
    x, group, kind = np.ones(3), mcr_dl.new_group([0]), mcr_dl.ReduceOp
    for wrong in (
        lambda: mcr_dl.all_reduce(x, kind.SUM, group),
        lambda: mcr_dl.all_reduce(x, kind.SUM, group, True),
        lambda: mcr_dl.all_reduce(x, kind.SUM, "max"),
        lambda: mcr_dl.all_reduce(x, kind.SUM, op=kind.MAX),
        lambda: mcr_dl.all_reduce(x, kind.SUM, False, True),
        lambda: mcr_dl.all_reduce(None, x),
    ):
        with pytest.raises(hc.InvalidArgumentError):
            wrong()
    mcr_dl.all_reduce(x, kind.SUM, True).wait()
    mcr_dl.all_reduce(x, kind.SUM, async_op=True).wait()
    mcr_dl.all_reduce(x, op=kind.MAX)
    assert mcr_dl.all_reduce(x, kind.SUM) is None and x.tolist() == [1.0] * 3
    mcr_dl.finalize()
