"""send, recv and related calls, on NumPy arrays and torch tensors, between processes."""

from __future__ import annotations

import os
import random
import signal
import threading

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks

import horocache as hc
from horocache.collectives.numpy import DTYPES
from horocache.testing import run_ranks

from .bindings import both_bindings

NUMPY_DTYPES = sorted(map(str, DTYPES))


@both_bindings
@on_ranks(2, 3, 4)
def test_messages_of_every_dtype_and_shape_arrive(binding):
    rank = hc.rank()
    after, before = (rank + 1) % hc.size(), (rank - 1) % hc.size()
    for dtype in NUMPY_DTYPES:
        for shape in [(), (0,), (0, 3), (1,), (3, 5), (70, 100)]:
            count = int(np.prod(shape, dtype=np.int64))
            mine = np.asarray((np.arange(count).reshape(shape) + rank) % 2, dtype)
            got = np.empty(shape, dtype)
            result = hc.sendrecv(mine, after, got, before, sendtag=3, recvtag=3)
            assert result is got
            expected = np.asarray((np.arange(count).reshape(shape) + before) % 2, dtype)
            np.testing.assert_array_equal(got, expected, f"{dtype} {shape}")
    target = np.zeros((4, 6), np.float32)
    handle = hc.irecv(target[::2, 1::3], before)
    hc.send(np.array([[1, 2], [3, 4]], np.float32), after)
    hc.synchronize(handle)
    np.testing.assert_array_equal(target[::2, 1::3], [[1, 2], [3, 4]])
    assert target.sum() == 10, "nothing else was written"
    fortran = np.zeros((2, 3), ">f8", order="F")
    handle = hc.irecv(fortran, before)
    hc.send(np.arange(6.0).reshape(3, 2), after)
    assert hc.synchronize(handle) is fortran
    np.testing.assert_array_equal(fortran.ravel(), np.arange(6.0))


@on_ranks(3)
def test_autograd_detects_torch_tensors_that_a_receive_overwrites():
    after, before = (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()
    for dtype in (torch.bfloat16, torch.float32, torch.bool, torch.complex64):
        mine = (torch.arange(12).reshape(3, 4) + hvd.rank()).to(dtype)
        got = torch.empty(4, 3, dtype=dtype).t()
        hvd.sendrecv(mine, after, got, before)
        assert torch.equal(got, (torch.arange(12).reshape(3, 4) + before).to(dtype)), dtype
    weight = torch.ones(3, requires_grad=True)
    saved = torch.full((3,), 2.0)
    loss = (weight * saved).sum()
    hvd.sendrecv(weight, after, saved, before)  # a tensor with a graph is sent as its values
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@on_ranks(4)
def test_random_messages_in_any_order_arrive_during_allreduces():
    """Seeded messages of up to 5 MB between 4 ranks, posted in a different order on each rank or sent by threads."""
    seed = 11

    me, ranks = hc.rank(), hc.size()
    common = random.Random(seed)
    sizes = [0, 1, 100, 16 << 10, (16 << 10) + 1, 200_000]
    plan = [
        (common.randrange(ranks), common.randrange(ranks), common.randrange(3), common.choice(sizes))
        for _ in range(150)
    ]
    plan += [(0, 3, 1, 5_000_000), (3, 0, 1, 5_000_000), (1, 1, 0, 1_000_000)]
    blocking = [(src, dst, 7, size) for src, dst, _, size in plan[:60] if src != dst]

    def content(index, size):
        return np.random.default_rng(index).integers(0, 255, size, np.uint8)

    # Messages with the same sender, receiver and tag keep the plan's order; all others are shuffled on each rank.
    mine = random.Random(seed * 10 + me)
    keys = [(src, dst, tag) for src, dst, tag, _ in plan]
    queues = {}
    for index, (src, dst, tag) in enumerate(keys):
        if me in (src, dst):
            queues.setdefault((src, dst, tag), []).append(index)
    todo = [(key, sends) for key in queues for sends in (True, False) if key[not sends] == me for _ in queues[key]]
    mine.shuffle(todo)
    heads = {}
    handles, received = [], []
    errors = []

    def run(action):
        try:
            action()
        except BaseException as error:  # asserted on at the end
            errors.append(error)

    def send_blocking():
        for index, (src, dst, tag, size) in enumerate(blocking):
            if src == me:
                hc.send(content(1000 + index, size), dst, tag)

    def receive_blocking():
        for index, (src, dst, tag, size) in enumerate(blocking):
            if dst == me:
                got = hc.recv(np.empty(size, np.uint8), src, tag)
                np.testing.assert_array_equal(got, content(1000 + index, size), f"blocking {index}")

    def reduce():
        for step in range(20):
            result = hc.allreduce(np.full(5000, me + step, np.float32), op=hc.Sum, name=f"x{step % 2}")
            assert (result == ranks * step + ranks * (ranks - 1) / 2).all()

    threads = [threading.Thread(target=run, args=(action,)) for action in (send_blocking, receive_blocking, reduce)]
    for thread in threads:
        thread.start()
    for key, sends in todo:
        src, dst, tag = key
        at = heads[key, sends] = heads.get((key, sends), -1) + 1
        index = queues[key][at]
        size = plan[index][3]
        if sends:
            handles.append(hc.isend(content(index, size), dst, tag))
        else:
            received.append((index, hc.irecv(np.empty(size, np.uint8), src, tag)))
    mine.shuffle(handles)
    for index, handle in received:
        np.testing.assert_array_equal(hc.synchronize(handle), content(index, plan[index][3]), f"message {index}")
    for handle in handles:
        assert hc.synchronize(handle) is None
    for thread in threads:
        thread.join(60.0)
    assert not errors, errors
    assert hc.metrics()["messages_received"] == sum(me == dst for _, dst, *_ in plan + blocking)


@on_ranks(2)
def test_a_large_send_waits_for_its_receive_and_a_small_one_does_not():
    peer = 1 - hc.rank()
    small, large = np.full(4096, hc.rank(), np.float32), np.full(250_000, hc.rank(), np.float32)
    hc.send(small, peer)  # both ranks send at once: 16 KiB are sent without a matching recv
    np.testing.assert_array_equal(hc.recv(np.empty_like(small), peer), peer)
    with pytest.raises(TimeoutError):
        hc.synchronize(handle := hc.isend(large, peer), timeout=0.1)
    assert not hc.poll(handle)
    hc.barrier()  # no rank receives before both have timed out
    np.testing.assert_array_equal(hc.recv(np.empty_like(large), peer), peer)
    hc.synchronize(handle)


@on_ranks(8)
def test_eight_ranks_send_to_each_other():
    ranks = range(hc.size())
    for count in (1, 50_000):
        got = [hc.irecv(np.empty(count, np.int64), src) for src in ranks]
        sent = [hc.isend(np.full(count, hc.rank() * 100 + dst), dst) for dst in ranks]
        for src, handle in enumerate(got):
            np.testing.assert_array_equal(hc.synchronize(handle), src * 100 + hc.rank())
        for handle in sent:
            hc.synchronize(handle)


@on_ranks(2)
def test_bad_arguments_are_refused_before_anything_is_posted():
    array = np.zeros(3)
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for call, words in [
        (lambda: hc.send(array, 2), "dst.*0 to 1.*is 2"),
        (lambda: hc.send(array, -1), "dst"),
        (lambda: hc.recv(array, None), "src.*any rank"),
        (lambda: hc.recv(array, -1), "src.*any rank"),
        (lambda: hc.irecv(array, 0.5), "src"),
        (lambda: hc.send(array, 1, tag=-1), "tag"),
        (lambda: hc.send(array, 1, tag=2**31), "tag"),
        (lambda: hc.send(array, 1, tag="a"), "tag"),
        (lambda: hc.recv(frozen, 1), "read-only"),
        (lambda: hc.recv([1.0], 1), "tensor to store"),
        (lambda: hc.send("text", 1), "NumPy array"),
        (lambda: hc.sendrecv(array, 5, array, 1), "dst"),
        (lambda: hc.sendrecv(array, 1, array, 1, sendtag=-2), "tag"),
        (lambda: hc.send(array, 1, process_set=hc.ProcessSet([0])), "[Pp]rocess set"),
    ]:
        with pytest.raises(hc.InvalidArgumentError, match=words):
            call()
    with pytest.raises(hc.UnsupportedError):
        hc.send(np.array(["text"]), 1)
    peer = 1 - hc.rank()
    got = hc.sendrecv(np.arange(3), peer, np.empty(3, int), peer)  # the refused calls have posted nothing
    np.testing.assert_array_equal(got, np.arange(3))


def test_a_killed_receiver_is_named_on_every_rank_that_waits():
    def wait_while_rank_2_dies():
        hc.init()
        large = np.zeros(100_000_000, np.uint8)
        if hc.rank() == 2:
            handle = hc.irecv(large, 0)
            while not large[0]:  # the message has begun to arrive, and most of it is still to come
                hc.poll(handle)
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(hc.PeerLostError, match=r"rank 2 .*signal 9") as raised:
            if hc.rank() == 0:
                hc.send(large + 1, 2)
                hc.send(large, 2)
            else:
                hc.recv(large, 0, tag=5)  # fails although rank 0 is alive
        assert f"rank {hc.rank()}" in str(raised.value)
        with pytest.raises(hc.PeerLostError):
            hc.send(large, 1)
        return True

    outcomes = run_ranks(wait_while_rank_2_dies, 3, check=False)
    assert [outcome.value for outcome in outcomes] == [True, True, None], "\n".join(o.describe() for o in outcomes)


def test_errors_name_the_rank_that_died_not_the_rank_that_left_after_it():
    def wait_while_rank_2_dies_and_rank_0_leaves():
        hc.init()
        rank, pids = hc.rank(), hc.allgather_object(os.getpid(), name="pids")
        if rank == 1:
            with pytest.raises(hc.PeerLostError, match=r"rank 2 .*signal 9"):
                hc.recv(np.empty(3), 0)
        if rank == 0:
            hc.recv(np.empty(1), 2)
            # Rank 1 sees none of these events before all of them have happened.
            os.kill(pids[1], signal.SIGSTOP)
            os.kill(pids[2], signal.SIGKILL)
            with pytest.raises(hc.PeerLostError, match=r"rank 2 .*signal 9"):
                hc.recv(np.empty(1), 2)
            hc.shutdown()
            os.kill(pids[1], signal.SIGCONT)
        if rank == 2:
            hc.send(np.ones(1), 0)
            hc.recv(np.empty(1), 1)
        return True

    outcomes = run_ranks(wait_while_rank_2_dies_and_rank_0_leaves, 3, check=False)
    assert [outcome.value for outcome in outcomes] == [True, True, None], "\n".join(o.describe() for o in outcomes)


def test_a_stopped_peer_is_reported_and_then_raises_a_stall_error():
    def wait_while_rank_1_is_stopped():
        hc.init()
        pids = hc.allgather(np.array([os.getpid()]))
        large = np.zeros(1_000_000, np.uint8)
        if hc.rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            with pytest.raises(hc.StallError, match=r"recv from rank 1 with tag 4 \(1000000 bytes\).*on rank 0"):
                hc.recv(large, 1, tag=4)
            os.kill(pids[1], signal.SIGCONT)
        total = hc.allreduce(np.ones(1), op=hc.Sum)  # both ranks go on
        assert total == 2

    knobs = {"stall_check_time_seconds": 0.5, "stall_shutdown_time_seconds": 1.5}
    outcomes = run_ranks(wait_while_rank_1_is_stopped, 2, knobs=knobs, check=False)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    assert "recv from rank 1 with tag 4" in outcomes[0].output
    assert "rank 1 has not sent such a message" in outcomes[0].output


@on_ranks(2)
def test_a_message_outlives_its_sender():
    if hc.rank() == 0:
        hc.send(np.arange(100), 1)
        hc.isend(np.arange(50), 1, tag=2)  # small and without a wait: sent before the rank leaves
        return
    with pytest.raises(hc.ShutDownError, match="rank 0"):
        hc.recv(np.empty(1), 0, tag=9)
    np.testing.assert_array_equal(hc.recv(np.empty(100, int), 0), np.arange(100))
    np.testing.assert_array_equal(hc.recv(np.empty(50, int), 0, tag=2), np.arange(50))


@on_ranks(3, init=False)
def test_messages_in_a_process_set_use_global_ranks_and_stay_in_the_set():
    pair = hc.ProcessSet([1, 2])
    hc.init(process_sets=[pair])
    if hc.rank() == 0:
        with pytest.raises(hc.InvalidArgumentError, match="not a member"):
            hc.send(np.ones(1), 1, process_set=pair)
        return
    with pytest.raises(hc.InvalidArgumentError, match=r"dst must be one of the ranks \[1, 2\]; it is 0"):
        hc.send(np.ones(1), 0, process_set=pair)
    peer = 3 - hc.rank()
    handles = [hc.isend(np.full(3, number), peer, process_set=s) for number, s in enumerate(hc.process_sets())]
    for number, process_set in reversed(list(enumerate(hc.process_sets()))):
        np.testing.assert_array_equal(hc.recv(np.empty(3, int), peer, process_set=process_set), number)
    for handle in handles:
        hc.synchronize(handle)
