"""The collectives on NumPy arrays, through both bindings to the core."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc

from ..bindings import both_bindings

INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]


def values(rank, shape, dtype):
    """Small whole numbers; their sums and products are exact in every dtype and order."""
    count = int(np.prod(shape, dtype=np.int64))
    base = ((np.arange(count) * 7 + rank * 3) % 4 + 1).reshape(shape)
    array = base + 1j * ((base + rank) % 3) if np.dtype(dtype).kind == "c" else base
    return np.asarray(array, dtype=dtype)


@both_bindings
@on_ranks(1, 2, 3, 4)
def test_every_dtype_is_reduced_with_every_defined_operation(binding):
    cases = {hc.Sum: np.add, hc.Product: np.multiply, hc.Min: np.minimum, hc.Max: np.maximum}
    for dtype in INTEGERS + FLOATS + COMPLEX:
        for op, combine in cases.items():
            if dtype in COMPLEX and op in (hc.Min, hc.Max):
                with pytest.raises(hc.HorocacheError, match=dtype):
                    hc.allreduce(values(hc.rank(), (5,), dtype), op=op)
                continue
            for shape in [(), (0,), (1,), (7,), (3, 5)]:
                mine = values(hc.rank(), shape, dtype)
                before = mine.copy()
                got = hc.allreduce(mine, op=op)
                expected = combine.reduce([values(r, shape, dtype) for r in range(hc.size())])
                assert got.dtype == np.dtype(dtype) and got.shape == shape
                np.testing.assert_array_equal(got, expected.astype(dtype), f"{dtype} op {op} {shape}")
                np.testing.assert_array_equal(mine, before)


@both_bindings
@on_ranks(1, 2, 3, 4)
def test_booleans_are_reduced_as_or_and_and(binding):
    mine = np.array([True, False, hc.rank() == 0, hc.rank() != 0])
    all_ranks = np.array([[True, False, r == 0, r != 0] for r in range(hc.size())])
    for op, expected in [(hc.Sum, all_ranks.any(0)), (hc.Max, all_ranks.any(0)), (hc.Min, all_ranks.all(0))]:
        np.testing.assert_array_equal(hc.allreduce(mine, op=op), expected)
    np.testing.assert_array_equal(hc.allreduce(mine, op=hc.Product), all_ranks.all(0))


@on_ranks(1, 2, 3, 4)
def test_average_divides_by_the_ranks_and_truncates_integers():
    ranks = range(hc.size())
    for dtype in INTEGERS:
        mine = np.array([hc.rank(), 7, 2 * hc.rank() + 1], dtype=dtype)
        total = np.sum([[r, 7, 2 * r + 1] for r in ranks], axis=0)
        np.testing.assert_array_equal(hc.allreduce(mine), np.trunc(total / hc.size()).astype(dtype))
    negative = np.array([-7, -1 - hc.rank()], dtype=np.int32)
    total = np.sum([[-7, -1 - r] for r in ranks], axis=0)
    np.testing.assert_array_equal(hc.allreduce(negative), np.trunc(total / hc.size()).astype(np.int32))
    np.testing.assert_allclose(hc.allreduce(np.array([float(hc.rank())])), [(hc.size() - 1) / 2], rtol=1e-15)


@on_ranks(1, 2, 3, 4)
def test_scales_multiply_before_and_after_the_sum():
    mine = values(hc.rank(), (9,), np.float64)
    total = sum(values(r, (9,), np.float64) * 0.5 for r in range(hc.size())) * 4.0
    got = hc.allreduce(mine, op=hc.Sum, prescale_factor=0.5, postscale_factor=4.0)
    np.testing.assert_array_equal(got, total)


@both_bindings
@on_ranks(3)
def test_arrays_in_any_memory_layout_are_reduced_and_written_back(binding):
    total = hc.size() * (hc.size() - 1) // 2

    layouts = {
        "transposed": lambda base: base.T,
        "strided": lambda base: base[::2, 1::3],
        "reversed": lambda base: base[::-1],
        "fortran": np.asfortranarray,
        "big endian": lambda base: base.astype(">f4"),
    }
    for label, layout in layouts.items():
        view = layout(np.full((6, 8), hc.rank(), dtype=np.float32))
        got = hc.allreduce(view, op=hc.Sum, name=label)
        assert got.shape == view.shape
        np.testing.assert_array_equal(got, np.full(view.shape, total), label)
        assert hc.allreduce_(view, op=hc.Sum, name=label) is view
        np.testing.assert_array_equal(view, np.full(view.shape, total), label)
    window = np.full((4, 4), hc.rank(), dtype=np.int64)
    hc.broadcast_(window[:, 1], 1)
    np.testing.assert_array_equal(window[:, 1], np.full(4, 1))
    np.testing.assert_array_equal(window[:, 0], np.full(4, hc.rank()))


@on_ranks(2)
def test_read_only_arrays_can_be_sent_but_not_overwritten():
    array = np.ones(4, dtype=np.float32)
    array.flags.writeable = False
    np.testing.assert_array_equal(hc.allreduce(array, op=hc.Sum), np.full(4, hc.size()))
    with pytest.raises(ValueError, match="read-only"):
        hc.allreduce_(array)
    with pytest.raises(ValueError, match="read-only"):
        hc.broadcast_(array, 0)
    with pytest.raises(ValueError, match="in place"):
        hc.allreduce_(3.0)


@on_ranks(2)
def test_numbers_and_lists_are_accepted_as_arrays():
    assert hc.allreduce(2.5, op=hc.Sum) == 2.5 * hc.size()
    assert hc.allreduce(np.float32(1), op=hc.Sum).dtype == np.float32
    assert hc.allreduce([1, 2], op=hc.Max).tolist() == [1, 2]
    assert hc.allgather(hc.rank()).tolist() == list(range(hc.size()))


@both_bindings
@on_ranks(1, 2, 3, 4)
def test_allgather_concatenates_different_numbers_of_rows(binding):
    for dtype in INTEGERS + FLOATS + COMPLEX + ["bool"]:
        for tail in [(), (3,), (2, 0)]:
            parts = [values(r, (r % 3, *tail), dtype) for r in range(hc.size())]
            got = hc.allgather(parts[hc.rank()])
            assert got.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(got, np.concatenate(parts))
    many = hc.grouped_allgather([np.full(hc.rank() + 1, k + hc.rank()) for k in range(4)])
    for k, got in enumerate(many):
        np.testing.assert_array_equal(got, np.concatenate([np.full(r + 1, k + r) for r in range(hc.size())]))


@both_bindings
@on_ranks(1, 2, 3, 4)
def test_broadcast_copies_the_roots_values_from_every_root(binding):
    for root in range(hc.size()):
        for dtype in INTEGERS + FLOATS + COMPLEX + ["bool"]:
            for shape in [(), (0, 3), (4, 5)]:
                mine = values(hc.rank(), shape, dtype)
                before = mine.copy()
                np.testing.assert_array_equal(hc.broadcast(mine, root), values(root, shape, dtype))
                np.testing.assert_array_equal(mine, before)
                assert hc.broadcast_(mine, root_rank=root) is mine
                np.testing.assert_array_equal(mine, values(root, shape, dtype))
    group = [np.full(3, hc.rank()), np.full((2, 2), hc.rank() + 0.5)]
    hc.grouped_broadcast_(group, hc.size() - 1)
    np.testing.assert_array_equal(group[1], np.full((2, 2), hc.size() - 0.5))


@both_bindings
@on_ranks(1, 2, 3, 4)
def test_reducescatter_gives_remaining_rows_to_the_first_ranks(binding):
    for rows in [0, 1, hc.size(), 3 * hc.size(), 2 * hc.size() + 1, 7]:
        for dtype in ["int32", "float16", "float64", "complex64"]:
            mine = values(hc.rank(), (rows, 3), dtype)
            total = np.sum([values(r, (rows, 3), dtype) for r in range(hc.size())], axis=0, dtype=dtype)
            expected = np.array_split(total, hc.size())[hc.rank()]
            got = hc.reducescatter(mine, op=hc.Sum)
            assert got.shape == expected.shape and got.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(got, expected)
    pair = [np.ones((4, 2), np.float32), np.full((5,), 2.0)]
    first, second = hc.grouped_reducescatter(pair, op=hc.Sum)
    np.testing.assert_array_equal(
        first, np.full((len(np.array_split(np.arange(4), hc.size())[hc.rank()]), 2), hc.size())
    )
    assert second.shape == np.array_split(np.arange(5), hc.size())[hc.rank()].shape
    with pytest.raises(ValueError, match="scalar"):
        hc.reducescatter(np.float32(1))


@both_bindings
@on_ranks(1, 2, 3, 4)
def test_alltoall_exchanges_rows_by_splits(binding):
    me, n = hc.rank(), hc.size()
    even = np.repeat(np.arange(n), 2) * 10 + me
    np.testing.assert_array_equal(hc.alltoall(even), np.repeat(me * 10 + np.arange(n), 2))

    def sent(source, target):
        return (source + 2 * target) % 3

    splits = [sent(me, target) for target in range(n)]
    rows = np.concatenate([np.full((sent(me, t), 2), me * 100 + t, dtype=np.int64) for t in range(n)])
    for given in (splits, np.array(splits), tuple(splits)):
        output, received = hc.alltoall(rows, given)
        expected = np.concatenate([np.full((sent(s, me), 2), s * 100 + me) for s in range(n)])
        np.testing.assert_array_equal(output, expected)
        assert received.tolist() == [sent(s, me) for s in range(n)] and received.dtype == np.int32
    nothing, received = hc.alltoall(np.empty((0, 4), np.float32), [0] * n)
    assert nothing.shape == (0, 4) and received.tolist() == [0] * n
    output, _ = hc.alltoall(np.arange(n + 3), [1] * n)
    np.testing.assert_array_equal(output, np.full(n, me))


@both_bindings
@on_ranks(3)
def test_groups_and_handles_give_the_same_results_as_single_calls(binding):
    tensors = [values(hc.rank(), (k, 3), dtype) for k, dtype in enumerate(["float32", "float64", "int32", "float32"])]
    single = [hc.allreduce(t, op=hc.Sum) for t in tensors]
    for step in range(3):
        grouped = hc.grouped_allreduce(tensors, op=hc.Sum, name="g")
        handles = [hc.allreduce_async(t, op=hc.Sum, name=f"t{i}") for i, t in enumerate(tensors)]
        group = hc.grouped_allreduce_async_([t.copy() for t in tensors], op=hc.Sum)
        results = [hc.synchronize(h) for h in reversed(handles)][::-1]
        for want, *rest in zip(single, grouped, results, hc.synchronize(group), strict=True):
            for got in rest:
                np.testing.assert_array_equal(got, want, f"step {step}")
    handle = hc.allgather_async(np.arange(2))
    while not hc.poll(handle):
        pass
    np.testing.assert_array_equal(hc.synchronize(handle), np.tile(np.arange(2), hc.size()))
    assert (repr(handle), str(handle)) == (f"<handle {int(handle)}, consumed>", f"{int(handle)}")
    for call in (hc.synchronize, hc.poll, hc.Handle.wait, hc.Handle.done):
        with pytest.raises(ValueError, match=f"Handle {handle} was not created or has been cleared"):
            call(handle)
    hc.barrier()


@on_ranks(3)
def test_half_precision_on_the_wire_rounds_once_on_each_side():
    exact = values(hc.rank(), (33,), np.float32) / 4
    got = hc.allreduce(exact, op=hc.Sum, compression=hc.Compression.fp16)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, sum(values(r, (33,), np.float32) / 4 for r in range(hc.size())))
    rough = hc.allreduce(np.full(5, 1 / 3, np.float64), op=hc.Average, compression=hc.Compression.fp16)
    np.testing.assert_array_equal(rough, np.full(5, np.float16(1 / 3), np.float64))
    whole = hc.allreduce(np.full(5, 2**20), op=hc.Sum, compression=hc.Compression.fp16)
    np.testing.assert_array_equal(whole, np.full(5, hc.size() * 2**20))
    with pytest.raises(hc.UnsupportedError, match="bfloat16"):
        hc.allreduce(exact, compression=hc.Compression.bf16)
