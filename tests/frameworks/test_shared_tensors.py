"""Tensors in memory that the ranks of a host share: allocation, in-place reductions, lifetime, fork and shutdown."""

from __future__ import annotations

import itertools
import os

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks
from torch.utils.data import DataLoader

import horocache as hc
from horocache.errors import InvalidArgumentError, NotInitializedError, PeerLostError
from horocache.testing import Fault, run_ranks

from .bindings import both_bindings

# Fixed here: the default limit of the one-shot algorithm, which copies, depends on the number of cores.
LARGE = {"oneshot_max": 16384}
DTYPES = ["uint8", "int32", "int64", "float16", "float32", "float64"]


def copied(call):
    """The number of bytes that the data plane copies during a call."""
    before = hc.metrics()["bytes_copied"]
    call()
    return hc.metrics()["bytes_copied"] - before


@both_bindings
@on_ranks(2, 4, init=False)
def test_shared_arrays_are_reduced_like_private_ones_without_copies(binding):
    hc.init(binding=binding, **LARGE)
    for dtype in DTYPES:
        for shape in (40_000, (3, 20_001), ()):
            shared, private = hc.empty(shape, dtype), np.empty(shape, dtype)
            assert hc.is_shared(shared) and not hc.is_shared(private)
            assert shared.shape == private.shape and shared.dtype == np.dtype(dtype)
            values = (np.arange(private.size) % 5 + hc.rank()).astype(dtype).reshape(private.shape)
            shared[...] = private[...] = values
            name = f"{dtype} {shape}"
            moved = copied(lambda a=shared, n=name: hc.allreduce_(a, name=n + " shared"))
            hc.allreduce_(private, name=name)
            assert shared.tobytes() == private.tobytes()
            assert moved == 0 or shape == ()


@on_ranks(2, 3, 8, init=False)
def test_parts_of_one_tensor_are_reduced_without_copies_in_any_order():
    hvd.init(**LARGE)
    flat = hvd.empty(60_000)
    flat.copy_(torch.arange(60_000) + hvd.rank())
    cuts = [0, 1, 30_000, 30_017, 59_999, 60_000]
    parts = [flat[a:b] for a, b in itertools.pairwise(cuts)]
    group = [parts[i] for i in (2, 0, 4, 1, 3)]
    assert copied(lambda: hvd.grouped_allreduce_(group, name="parts", op=hvd.Sum)) == 0
    n = hvd.size()
    want = torch.arange(60_000, dtype=torch.float32) * n + n * (n - 1) / 2
    assert torch.equal(flat, want)
    # The fusion planner fuses operations on single parts.
    flat.copy_(torch.arange(60_000) + hvd.rank())

    for handle in [hvd.allreduce_async_(part, name=f"p{i}", op=hvd.Sum) for i, part in enumerate(parts)]:
        hvd.synchronize(handle)
    assert torch.equal(flat, want)


@on_ranks(3)
def test_one_private_tensor_makes_all_ranks_use_buffers():
    for odd in range(3):
        tensor = torch.empty(50_000) if hvd.rank() == odd else hvd.empty(50_000)
        tensor.fill_(hvd.rank() + 1)
        assert copied(lambda t=tensor: hvd.allreduce_(t, name="mixed", op=hvd.Sum)) > 0
        assert torch.equal(tensor, torch.full((50_000,), 6.0))


@on_ranks(3, init=False)
def test_overlapping_process_sets_share_the_same_memory():
    sets = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])]
    hvd.init(process_sets=sets)
    later = hvd.add_process_set([0, 2])
    for number, one in enumerate([*sets, later]):
        if not one.included():
            continue
        tensor = hvd.empty(30_000).fill_(hvd.rank() + 1)
        assert copied(lambda t=tensor, s=one, i=number: hvd.allreduce_(t, name=f"s{i}", op=hvd.Sum, process_set=s)) == 0
        assert tensor[29_999].item() == sum(rank + 1 for rank in one.ranks)


@on_ranks(2, init=False)
def test_empty_accepts_shapes_and_dtypes_and_rejects_invalid_ones():
    with pytest.raises(NotInitializedError):
        hvd.empty(3)
    hvd.init()
    assert hvd.empty((2, 3)).shape == (2, 3) and hvd.empty(0).numel() == 0
    assert hvd.empty(2).dtype is torch.float32 and hvd.empty(2, torch.bfloat16).dtype is torch.bfloat16
    assert hc.empty(2).dtype == np.float32
    for bad in (-1, (2, -3), (1 << 62, 8), "abc", 1.5):
        with pytest.raises(InvalidArgumentError):
            hvd.empty(bad)
    with pytest.raises(InvalidArgumentError, match="no element type 'quint8'"):
        hvd.empty(3, torch.quint8)
    with pytest.raises(InvalidArgumentError, match="one tuple"):
        hvd.empty(3, 4)


@on_ranks(2, init=False)
def test_memory_is_freed_with_the_last_tensor_on_it():
    hvd.init(region_bytes=64 << 20)
    for _ in range(50):  # 50 times 40 MB, in a region of 64 MiB
        tensor = hvd.empty(10_000_000)
        assert hvd.is_shared(tensor)
        part = tensor[5:10]
        del tensor
        assert hvd.is_shared(part)
        del part


@on_ranks(2)
def test_freeing_a_tensor_in_flight_raises_an_error_with_its_name():
    tensor = hvd.empty(50_000).fill_(1)
    other = hvd.empty(50_000).fill_(1)
    hvd.barrier()
    if hvd.rank() == 0:
        handle = hvd.allreduce_async_(tensor, name="gone", op=hvd.Sum)
        tensor.set_(torch.zeros(3))  # frees the storage, which has no other user
        hvd.allreduce_(other, name="other", op=hvd.Sum)
        with pytest.raises(InvalidArgumentError, match=r"'allreduce\.gone' was freed, or given other memory"):
            hvd.synchronize(handle)
    else:
        hvd.allreduce_(other, name="other", op=hvd.Sum)
        hvd.allreduce_(tensor, name="gone", op=hvd.Sum)
    assert other[0].item() == 2.0
    # The memory was not reused during the operation. Now it is free.
    assert hvd.is_shared(hvd.empty(50_000))
    hvd.allreduce_(other, name="other", op=hvd.Sum)


def test_no_result_is_torn_if_a_rank_dies_while_others_read_its_memory():
    def reduce_while_rank_1_dies():
        hvd.init()
        tensor = hvd.empty(4_000_000)
        results = 0
        try:
            for step in range(1000):
                tensor.fill_(step + hvd.rank())
                hvd.allreduce_(tensor, name="t", op=hvd.Sum)
                results += 1
                assert bool((tensor == 3.0 * step + 3).all()), step
        except PeerLostError as error:
            return str(error), results
        return "no error", results

    faults = [Fault(rank=1, at="data", step=40, do="kill")]
    outcomes = run_ranks(reduce_while_rank_1_dies, 3, faults=faults, check=False)
    for outcome in (outcomes[0], outcomes[2]):
        error, results = outcome.value
        assert "rank 1" in error and "killed" in error
        assert results < 1000


@on_ranks(2)
def test_a_forked_child_writes_copies_of_shared_tensors_and_frees_none():
    tensor = hvd.empty(5000).fill_(7)
    array = hc.empty(3000, np.float64)
    me = array[:] = hvd.rank()
    model = torch.nn.Linear(30, 30)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 30)).sum().backward()
        optimizer.step()
    assert hvd.is_shared(model.weight.grad)
    want = model.weight.grad.clone()
    child = os.fork()
    if child == 0:
        good = tensor.sum().item() == 35_000 and array[0] == me and torch.equal(model.weight.grad, want)
        tensor.fill_(1)
        array.fill(-1.0)
        model.weight.grad.zero_()
        good = good and (tensor.sum().item(), array.sum(), model.weight.grad.sum().item()) == (5000, -3000, 0)
        del tensor, array
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0

    class Rows:
        def __len__(self):
            return 4

        def __getitem__(self, row):
            model.weight.grad[row] += 1
            tensor[row] = -1.0
            return model.weight.grad[row].sum() - want[row].sum()

    loader = DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    assert torch.cat(list(loader)).tolist() == pytest.approx([30.0] * 4)
    hvd.barrier()  # every child has written
    assert tensor.sum().item() == 35_000
    assert array.mean() == hvd.rank()
    assert torch.equal(model.weight.grad, want)
    hvd.allreduce_(tensor, name="after", op=hvd.Sum)
    assert tensor[0].item() == 14.0


@on_ranks(2)
def test_tensors_stay_readable_after_shutdown_and_restart():
    old = hvd.empty(20_000).fill_(hvd.rank())
    hvd.allreduce_(old, name="t", op=hvd.Sum)
    hvd.shutdown()
    assert old.sum().item() == 20_000
    hvd.init()
    assert not hvd.is_shared(old)
    new = hvd.empty(20_000).fill_(2)
    hvd.allreduce_(new, name="t", op=hvd.Sum)
    assert copied(lambda: hvd.allreduce_(old, name="old", op=hvd.Sum)) > 0
    assert old[0].item() == 2.0 and new[0].item() == 4.0


@on_ranks(2, init=False)
def test_the_steady_state_copies_and_allocates_nothing():
    hvd.init(spin_us=50_000, **LARGE)
    tensors = [hvd.empty(n).zero_() for n in (5000, 100_000)]
    names = ["small", "large"]

    def step():
        for tensor, name in zip(tensors, names, strict=True):
            hvd.allreduce_(tensor, name=name, op=hvd.Sum)

    for _ in range(20):
        step()
    first, second = hc.metrics(), hc.metrics()
    per_metrics_call = second["allocations"] - first["allocations"]
    assert per_metrics_call > 0  # allocations are counted
    counted = []
    for _ in range(10):
        before = hc.metrics()
        for _ in range(20):
            step()
        after = hc.metrics()
        counted.append(after["allocations"] - before["allocations"] - per_metrics_call)
        assert after["bytes_copied"] == before["bytes_copied"]
    # If the machine suspends a rank for long, the other ranks examine the delay and allocate memory for that.
    assert min(counted) == 0, counted


@pytest.mark.parametrize("waiter_drives", [True, False])
@on_ranks(2, init=False)
def test_a_waiting_thread_drives_the_rank_unless_waiter_drives_is_off(waiter_drives):
    hvd.init(waiter_drives=waiter_drives, spin_us=100_000)
    tensor = torch.ones(4)
    for _ in range(5):
        hvd.allreduce_(tensor, name="t", op=hvd.Average)
    driven, slept = [], []
    for _ in range(10):
        before = hc.metrics()
        for _ in range(50):
            hvd.allreduce_(tensor, name="t", op=hvd.Average)
        after = hc.metrics()
        driven.append(after["lock_taken"] - before["lock_taken"])
        slept.append(sum(after[n] - before[n] for n in ("sleeps", "wakeups", "wakes")))
    # If the machine suspends a rank for long, the other rank sleeps, or its progress thread does the work.
    assert min(slept) == 0 or not waiter_drives, slept
    if waiter_drives:
        assert max(driven) >= 50 and sum(driven) >= 450, driven
    else:
        assert max(driven) == 0, driven
