"""M5, M6: handles of asynchronous operations."""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
import horocache.mcr_dl as mcr_dl


@on_ranks(2, 3, init=False)
def test_m5_handles_are_waited_for_in_any_order_and_twice():
    mcr_dl.init("shm")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_size()
    tensors = [np.full(4, float(rank + number)) for number in range(40)]
    handles = [mcr_dl.all_reduce("shm", tensor, async_op=True) for tensor in tensors]
    expected = [sum(each + number for each in range(size)) for number in range(40)]
    order = np.random.default_rng(rank).permutation(40)  # a different order on each rank
    for number in order:
        assert handles[number].wait() is True
        assert tensors[number].tolist() == [expected[number]] * 4
    for number in order[::-1]:
        assert handles[number].wait(0) and handles[number].is_completed() and handles[number].exception() is None
        assert handles[number].result() is tensors[number]
    work = mcr_dl.gather("shm", np.zeros(size) if rank == 0 else np.ones(1), 0, async_op=True)
    assert (work.result() is None) == (rank != 0)
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m5_a_wait_that_is_too_short_raises_timeout_error_and_the_handle_stays_valid():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    tensor = np.ones(3)
    if rank == 0:
        handle = mcr_dl.all_reduce("shm", tensor, async_op=True)
        for timeout in (0, 0.2, timedelta(milliseconds=200)):
            with pytest.raises(TimeoutError, match="is not done on rank 0"):
                handle.wait(timeout)
        assert not handle.is_completed() and "in flight" in repr(handle)
        for bad in (-1, float("nan"), "1", True, float("inf")):
            with pytest.raises(hc.InvalidArgumentError, match="timeout must be"):
                handle.wait(bad)
        mcr_dl.send("shm", np.zeros(1), 1)
    else:
        mcr_dl.recv("shm", np.zeros(1), 0)
        handle = mcr_dl.all_reduce("shm", tensor, async_op=True)
    assert handle.wait(60) and tensor.tolist() == [2.0] * 3
    message = mcr_dl.irecv("shm", tensor, 1 - rank, tag=9)
    with pytest.raises(TimeoutError):
        message.wait(0.05)
    mcr_dl.barrier("shm")
    mcr_dl.send("shm", np.full(3, float(rank)), 1 - rank, tag=9)
    assert message.wait(60) and tensor.tolist() == [1.0 - rank] * 3
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m5_dropped_handles_store_their_results_and_leave_nothing():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    tensors = [np.full((3, 4), float(rank + 1))[:, ::2] for _ in range(60)]  # the results are copied
    for tensor in tensors:
        mcr_dl.all_reduce("shm", tensor, async_op=True)
        mcr_dl.irecv("shm", np.zeros(1), 1 - rank, tag=7)
    for _ in range(60):
        mcr_dl.isend("shm", np.zeros(1), 1 - rank, tag=7)
    mcr_dl.synchronize(["shm"])
    assert all(np.all(tensor == 3.0) for tensor in tensors)
    for _ in range(200):  # without any wait: old operations are finished by later calls
        mcr_dl.all_reduce("shm", tensors[0], async_op=True)
    mcr_dl.barrier("shm")
    gc.collect()
    works = [each for each in gc.get_objects() if isinstance(each, mcr_dl.Work)]
    assert len(works) < 200
    mcr_dl.wait("shm")
    gc.collect()
    del works
    assert not any(isinstance(each, mcr_dl.Work) for each in gc.get_objects())
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m5_synchronize_waits_for_the_named_backends_and_raises_the_first_failure():
    mcr_dl.init(["loopback", "shm"])
    rank = mcr_dl.get_rank()
    with pytest.raises(hc.InvalidArgumentError, match="'mpi' was not given"):
        mcr_dl.synchronize("mpi")
    mcr_dl.synchronize()
    mine = mcr_dl.new_group([0]), mcr_dl.new_group([1])
    tensor = np.ones(2)
    pending = mcr_dl.all_reduce("shm", tensor, name="late", async_op=True) if rank == 0 else None
    local = mcr_dl.all_reduce("loopback", np.ones(2), async_op=True, group=mine[rank])
    mcr_dl.synchronize("loopback")
    assert local.is_completed()
    if rank == 0:
        assert not pending.is_completed()
        mcr_dl.send("shm", np.zeros(1), 1)
    else:
        mcr_dl.recv("shm", np.zeros(1), 0)
        mcr_dl.all_reduce("shm", tensor, name="late", async_op=True)
    mcr_dl.synchronize("shm")
    assert tensor.tolist() == [2.0, 2.0]
    mcr_dl.all_reduce("shm", np.ones(2 + rank), name="different", async_op=True)
    mcr_dl.all_reduce("shm", tensor, name="good", async_op=True)
    with pytest.raises(hc.MismatchError, match="different"):
        mcr_dl.synchronize()
    assert tensor.tolist() == [4.0, 4.0]
    mcr_dl.synchronize()
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m5_several_threads_wait_for_one_handle():
    mcr_dl.init("shm")
    rank, tensor = mcr_dl.get_rank(), np.ones(2)
    seen = []
    if rank == 0:
        handle = mcr_dl.all_reduce("shm", tensor, async_op=True)
        threads = [threading.Thread(target=lambda: seen.append(handle.wait())) for _ in range(4)]
        for thread in threads:
            thread.start()
        mcr_dl.send("shm", np.zeros(1), 1)
        for thread in threads:
            thread.join(30)
        assert seen == [True] * 4
    else:
        mcr_dl.recv("shm", np.zeros(1), 0)
        mcr_dl.all_reduce("shm", tensor)
    assert tensor.tolist() == [2.0, 2.0]
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m6_an_asynchronous_call_returns_before_the_other_ranks_have_called():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    large = np.ones(16 << 20, np.float32)  # 64 MiB
    if rank == 0:
        handle = mcr_dl.all_reduce("shm", large, async_op=True)
        mcr_dl.send("shm", np.zeros(1), 1)
    else:
        mcr_dl.recv("shm", np.zeros(1), 0)
        handle = mcr_dl.all_reduce("shm", large, async_op=True)
    limit = time.monotonic() + 60
    while not handle.is_completed():  # the daemon works while the program does something else
        time.sleep(0.001)
        assert time.monotonic() < limit
    assert large[0] == 2 and large[-1] == 2
    mcr_dl.finalize()
