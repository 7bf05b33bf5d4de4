"""Tensors at the limits: empty, not finite, with more elements than 31 bits can count, and very many of them."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import sys

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from horocache.torch.adapter import TorchAdapter
from memory import allocated_kib
from ranks import on_ranks

import horocache as hc
from horocache.collectives.numpy import NumpyAdapter
from horocache.errors import OutOfMemoryError


def shapes(seed, count):
    """Random shapes; many have an extent of 0 or no dimensions."""
    rng = random.Random(seed)
    return [tuple(rng.choice([0, 1, 2, 3, 7]) for _ in range(rng.randrange(4))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
@on_ranks(3)
def test_every_operation_keeps_shapes_in_any_memory_layout(seed):
    drawn = shapes(seed, 25)
    me, n = hc.rank(), hc.size()
    total = n * (n + 1) / 2
    handles, swaps = [], []
    for shape in drawn:
        mine = np.full(shape[::-1], me + 1.0).T  # in Fortran order
        assert mine.shape == shape
        handles.append((hc.allreduce_async(mine, op=hc.Sum), np.full(shape, total)))
        handles.append((hc.allreduce_async_(mine.copy(order="K"), op=hc.Max), np.full(shape, float(n))))
        handles.append((hc.broadcast_async(mine, n - 1), np.full(shape, float(n))))
        rows = shape[:1] or (1,)
        parts = [np.full(rows + shape[1:], r + 1.0) for r in range(n)]
        handles.append((hc.allgather_async(mine), np.concatenate(parts)))
        # Rank 0 contributes no rows, the others contribute all of theirs.
        some = mine[:0] if shape and me == 0 else mine
        kept = parts[1:] if shape else parts
        handles.append((hc.allgather_async(some), np.concatenate(kept)))
        if shape:
            share = np.array_split(np.full(shape, total), n)[me]
            handles.append((hc.reducescatter_async(mine, op=hc.Sum), share))
            every = [shape[0], *[0] * (n - 1)]  # all rows go to rank 0
            want = np.concatenate(parts) if me == 0 else np.zeros((0, *shape[1:]))
            swaps.append((hc.alltoall_async(mine, splits=every), want, [shape[0] * (me == 0)] * n))
    grouped = hc.grouped_allreduce([np.full(shape, 1.0) for shape in drawn], op=hc.Sum)
    for shape, got in zip(drawn, grouped, strict=True):
        np.testing.assert_array_equal(got, np.full(shape, float(n)))
    for handle, want in handles:
        got = hc.synchronize(handle)
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)
    for handle, want, counts in swaps:
        got, received = hc.synchronize(handle)
        assert got.shape == want.shape and received.tolist() == counts
        np.testing.assert_array_equal(got, want)


@on_ranks(3)
def test_inputs_may_share_memory():
    base = np.arange(8.0)
    windows = np.lib.stride_tricks.sliding_window_view(base, 3)
    views = [base, base, base[::-1], base[2:5], windows, np.broadcast_to(base[3], (2, 2))]
    want = [view.copy() * hc.size() for view in views]
    handles = [hc.allreduce_async(view, op=hc.Sum, name=f"v{i}") for i, view in enumerate(views)]
    for got in (hc.grouped_allreduce(views, op=hc.Sum), [hc.synchronize(handle) for handle in handles]):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(base, np.arange(8.0))


FLOATS_AND_COMPLEX = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]


@pytest.mark.parametrize("count", [1, 1000], ids=["small", "large"])
@on_ranks(3)
def test_non_finite_values_reach_all_ranks_and_no_other_element(count):
    nan, inf = float("nan"), float("inf")
    # Columns: a NaN on rank 1; an infinity on rank 1; opposite infinities on ranks 0 and 2; finite values.
    columns = {0: [1.0, 1.0, inf, 1.0], 1: [nan, inf, 1.0, 1.0], 2: [1.0, 1.0, -inf, 1.0]}[hvd.rank()]
    for dtype in FLOATS_AND_COMPLEX:
        mine = torch.tensor(columns).repeat(count, 1).to(dtype)
        results = {
            "sum": hvd.allreduce(mine, op=hvd.Sum),
            "mean": hvd.grouped_allreduce([mine], op=hvd.Average)[0],
            "rows": hvd.reducescatter(mine.repeat(3, 1), op=hvd.Sum),
        }
        for what, got in results.items():
            last = 1.0 if what == "mean" else 3.0
            real = torch.view_as_real(got)[..., 0] if dtype.is_complex else got
            assert real[:, 0].isnan().all(), (dtype, what)
            assert (real[:, 1] == inf).all(), (dtype, what)
            assert real[:, 2].isnan().all(), (dtype, what)
            assert (real[:, 3] == last).all(), (dtype, what)
        if dtype.is_complex:
            continue
        least, most = hvd.allreduce(mine, op=hvd.Min), hvd.allreduce(mine, op=hvd.Max)
        assert least[:, 0].isnan().all() and most[:, 0].isnan().all(), dtype
        assert (least[:, 2] == -inf).all() and (most[:, 2] == inf).all(), dtype
        assert (least[:, 3] == 1).all() and (most[:, 3] == 1).all(), dtype


@on_ranks(2, init=False)
def test_operations_on_more_than_2_to_the_31_elements():
    piece, count = 1 << 24, (1 << 31) + 7
    # Map a little over 2 GiB of addresses. All pieces but the last share 16 MiB of memory, which is harmless for Max.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    memory = os.memfd_create("large")
    os.ftruncate(memory, 2 * piece)
    base = libc.mmap(None, count + piece, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    fixed, usable = mmap.MAP_SHARED | 0x10, mmap.PROT_READ | mmap.PROT_WRITE
    for start in range(0, count, piece):
        where = libc.mmap(base + start, piece, usable, fixed, memory, piece if start == 1 << 31 else 0)
        assert where == base + start, os.strerror(ctypes.get_errno())
    large = np.ctypeslib.as_array((ctypes.c_int8 * count).from_address(base))

    hc.init()
    me = hc.rank()
    large[:4], large[-4:] = me + 1, me + 3
    assert hc.allreduce_(large, op=hc.Max, name="max") is large
    assert large[:5].tolist() == [2, 2, 2, 2, 0] and large[-8:].tolist() == [0] * 4 + [4] * 4
    large[:4], large[-4:] = me + 5, me + 7
    hc.broadcast_(large, 1, name="root")
    assert large[:4].tolist() == [6] * 4 and large[-4:].tolist() == [8] * 4
    # The rows for each destination rank begin beyond 2^31 elements.
    large[-4:] = [10 * me, 10 * me + 1, 10 * me + 2, 10 * me + 3]
    got, rows = hc.alltoallv(large, sendcounts=[1, 2], sdispls=[count - 4, count - 2])
    assert got.tolist() == [[0, 10], [2, 3, 12, 13]][me] and rows.tolist() == [me + 1] * 2
    own = hc.scatterv(large, root_rank=1, sendcounts=[2, 2], displs=[count - 3, count - 2])
    assert own.tolist() == [[11, 12], [12, 13]][me]


@on_ranks(2, init=False)
def test_a_hundred_thousand_cached_tensors_need_no_more_memory_per_step():
    count = 100000

    # The capacity that the warning of a too small cache recommends: the number of distinct operations in one step.
    hc.init(cache_capacity=count)
    names = [f"t{i}" for i in range(count)]
    allocated, blocks = [], []  # MiB, and Python's small objects
    for step in range(2):
        values = np.full((count, 1), step + hc.rank(), np.float32)
        handles = [hc.allreduce_async_(v, op=hc.Sum, name=n) for v, n in zip(values, names, strict=True)]
        for handle in handles:
            hc.synchronize(handle)
        assert (values == 2 * step + 1).all()
        allocated.append(allocated_kib() >> 10)
        blocks.append(sys.getallocatedblocks())
    metrics = hc.metrics()
    assert (metrics["cache_misses"], metrics["cache_hits"]) == (count, count)
    assert allocated[1] - allocated[0] < 32, f"MiB after each step: {allocated}"
    assert blocks[1] - blocks[0] < count // 10, f"small objects after each step: {blocks}"


@pytest.mark.parametrize(
    ("adapter", "huge"),
    [(NumpyAdapter(), np.broadcast_to(np.float32(1), 1 << 50)), (TorchAdapter(), torch.ones(1).expand(1 << 50))],
    ids=["numpy", "torch"],
)
def test_failed_allocations_raise_out_of_memory_error(adapter, huge):
    for allocate in (adapter.empty_like, adapter.dense):
        with pytest.raises(OutOfMemoryError, match=f"none for a tensor of {4 << 50} bytes"):
            allocate(huge)
