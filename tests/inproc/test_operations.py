"""Every operation through the whole daemon, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from horocache.errors import UnsupportedError

from .conftest import run_ranks, submit

ALLREDUCE, ALLGATHER, BROADCAST, REDUCESCATTER, ALLTOALL, BARRIER, JOIN = 0, 1, 2, 3, 4, 8, 9
REDUCE, GATHER, SCATTER = 5, 6, 7
AVERAGE, SUM, MIN, MAX, PRODUCT = 0, 1, 3, 4, 5


def blocking(runtime, op, inputs, outputs=None, **options):
    return runtime.wait(submit(runtime, op, inputs, outputs, wait_follows=True, **options), 60.0)


@pytest.mark.parametrize("mode", ["event", "tick"])
@pytest.mark.parametrize("capacity", ["0", "2", "1024"])
def test_allreduce_sums_whatever_the_cache_and_the_cycle(size, mode, capacity):
    def body(rank, runtime):
        for step in range(10):
            arrays = [np.full(n, rank + step + n, np.float32) for n in (1, 5, 1000, 70_000)]
            handles = [submit(runtime, ALLREDUCE, [a], [a], name=f"t{i}") for i, a in enumerate(arrays)]
            for handle in handles:
                runtime.wait(handle, 60.0)
            for n, array in zip((1, 5, 1000, 70_000), arrays, strict=True):
                np.testing.assert_array_equal(array, size * (step + n) + size * (size - 1) / 2)

    run_ranks(size, body, cycle_mode=mode, cache_capacity=capacity)


def test_a_group_larger_than_the_threshold_runs_in_pieces(size):
    def body(rank, runtime):
        arrays = [np.full(1000, rank + i, np.float64) for i in range(20)]
        blocking(runtime, ALLREDUCE, arrays, arrays, name="group", group=True)
        for i, array in enumerate(arrays):
            np.testing.assert_array_equal(array, size * i + size * (size - 1) / 2)
        return runtime.metrics()["fused_operations"]

    pieces = run_ranks(size, body, fusion_threshold="32000")
    assert pieces[0] == 5
    assert len(set(pieces)) == 1


def test_a_group_of_mixed_dtypes_is_reduced_in_each_of_them(size):
    def body(rank, runtime):
        arrays = [np.full(7, rank + 1, dtype) for dtype in (np.float32, np.float64, np.int32, np.float32)]
        blocking(runtime, ALLREDUCE, arrays, arrays, name="mixed", group=True)
        for array in arrays:
            np.testing.assert_array_equal(array, size * (size + 1) / 2)

    run_ranks(size, body)


def test_allgather_concatenates_rows_that_differ(size):
    def body(rank, runtime):
        for _ in range(3):  # the second time it is cached
            (result,) = blocking(runtime, ALLGATHER, [np.full((rank, 2), rank, np.int64)], name="rows")
            expected = np.concatenate([np.full((r, 2), r) for r in range(size)])
            np.testing.assert_array_equal(np.asarray(result), expected)
            assert result.rows == list(range(size))

    run_ranks(size, body)


def test_alltoall_sends_uneven_splits(size):
    def body(rank, runtime):
        splits = [rank + peer for peer in range(size)]
        (result,) = blocking(runtime, ALLTOALL, [np.full(sum(splits), rank, np.int32)], name="a2a", splits=splits)
        np.testing.assert_array_equal(np.asarray(result), np.concatenate([np.full(r + rank, r) for r in range(size)]))
        assert result.rows == [r + rank for r in range(size)]

    run_ranks(size, body)


def test_reducescatter_gives_the_first_ranks_the_remainder(size):
    rows = 2 * size + 1

    def body(rank, runtime):
        data = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) + rank
        (result,) = blocking(runtime, REDUCESCATTER, [data], name="rs")
        return np.asarray(result).copy()

    parts = run_ranks(size, body)
    assert [len(part) for part in parts] == [
        2 + (1 if rank < rows % size else 0) if size > 1 else rows for rank in range(size)
    ]
    base = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    np.testing.assert_array_equal(np.concatenate(parts), size * base + size * (size - 1) / 2)


def test_broadcast_comes_from_the_root(size):
    root = size - 1

    def body(rank, runtime):
        array = np.full((3, 3), rank, np.float16)
        blocking(runtime, BROADCAST, [array], [array], name="b", root=root)
        np.testing.assert_array_equal(array, root)

    run_ranks(size, body)


def test_joined_ranks_contribute_zeros_until_the_last_has_joined(size):
    def body(rank, runtime):
        for step in range(rank + 1):
            array = np.ones(4, np.float32)
            blocking(runtime, ALLREDUCE, [array], [array], name="uneven")
            np.testing.assert_array_equal(array, size - step)
        return blocking(runtime, JOIN, [])

    last = run_ranks(size, body)
    assert last == [size - 1] * size


@pytest.mark.parametrize("joined", [0, 2])
def test_operations_on_rows_go_on_without_a_rank_that_has_joined(joined):
    live = [rank for rank in range(3) if rank != joined]
    root = live[-1]

    def body(rank, runtime):
        if rank == joined:
            return blocking(runtime, JOIN, [])
        mine = np.full((3, 2), rank + 1.0)
        both = np.repeat([r + 1.0 for r in live], 3)
        for step in range(3):  # the later steps come from the cache
            expected = [9 if r == joined else 3 for r in range(3)]
            starts = [{live[0]: 1, live[1]: 4, joined: 7}[r] for r in range(3)]
            (got,) = blocking(
                runtime, ALLGATHER, [mine], name="rows", receive_rows=expected, receive_starts=starts if step else None
            )
            wide = np.concatenate([[0], both, np.zeros(9)]) if step else both
            np.testing.assert_array_equal(np.asarray(got)[:, 0], wide)
            (got,) = blocking(runtime, GATHER, [mine], name="gather", root=root)
            np.testing.assert_array_equal(np.asarray(got)[:, 0], both if rank == root else [])
            (got,) = blocking(runtime, SCATTER, [mine], name="scatter", root=root, splits=[1, 1, 1])
            np.testing.assert_array_equal(np.asarray(got), [[root + 1.0] * 2])
            (got,) = blocking(runtime, ALLTOALL, [mine], name="a2a", splits=[1, 1, 1])
            np.testing.assert_array_equal(np.asarray(got)[:, 0], [r + 1.0 for r in live])
            output = np.zeros((3, 2)) if rank == root else None
            blocking(runtime, REDUCE, [mine], [output], name="reduce", root=root)
            (got,) = blocking(runtime, REDUCESCATTER, [mine], name="uneven", splits=[2, 0, 1])
            np.testing.assert_array_equal(np.asarray(got), np.full(([2, 0, 1][rank], 2), sum(r + 1.0 for r in live)))
            if rank == root:
                np.testing.assert_array_equal(output, np.full((3, 2), sum(r + 1.0 for r in live)))
            blocking(runtime, BARRIER, [])
        with pytest.raises(UnsupportedError, match=f"rank {joined}, has joined"):
            blocking(runtime, GATHER, [mine], name="to.the.joined", root=joined)
        return blocking(runtime, JOIN, [])

    run_ranks(3, body)


def test_barrier_and_empty_and_scalar_tensors(size):
    def body(rank, runtime):
        blocking(runtime, BARRIER, [])
        empty, scalar = np.zeros((0, 3), np.float32), np.array(float(rank))
        blocking(runtime, ALLREDUCE, [empty], [empty], name="empty")
        blocking(runtime, ALLREDUCE, [scalar], [scalar], name="scalar", reduce_op=MAX)
        assert scalar == size - 1
        assert empty.shape == (0, 3)

    run_ranks(size, body)


def test_sixty_four_ranks_agree_and_sum():
    def body(rank, runtime):
        for step in range(3):
            array = np.full(50, rank + step, np.float64)
            blocking(runtime, ALLREDUCE, [array], [array], name="x")
            np.testing.assert_array_equal(array, sum(range(64)) + 64 * step)

    run_ranks(64, body)
