"""Every operation through the whole daemon, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from horocache.errors import UnsupportedError

from .conftest import on_ranks
from .operations import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    GATHER,
    JOIN,
    MAX,
    REDUCE,
    REDUCESCATTER,
    SCATTER,
    blocking,
    finish,
    submit_sum,
)


@pytest.mark.parametrize("cycle_mode", ["event", "tick"])
@pytest.mark.parametrize("cache_capacity", ["0", "2", "1024"])
@on_ranks(1, 2, 3, 4)
def test_allreduce_sums_in_every_cycle_mode_and_with_any_cache_capacity(
    rank, runtime, size, cycle_mode, cache_capacity
):
    for step in range(10):
        arrays = [np.full(n, rank + step + n, np.float32) for n in (1, 5, 1000, 70_000)]
        finish(runtime, *[submit_sum(runtime, a, name=f"t{i}") for i, a in enumerate(arrays)])
        for n, array in zip((1, 5, 1000, 70_000), arrays, strict=True):
            np.testing.assert_array_equal(array, size * (step + n) + size * (size - 1) / 2)


@on_ranks(1, 2, 3, 4, fusion_threshold="32000")
def test_a_group_larger_than_the_threshold_runs_in_pieces(rank, runtime, size):
    arrays = [np.full(1000, rank + i, np.float64) for i in range(20)]
    blocking(runtime, ALLREDUCE, arrays, arrays, name="group", group=True)
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(array, size * i + size * (size - 1) / 2)
    assert runtime.metrics()["fused_operations"] == 5


@on_ranks(1, 2, 3, 4)
def test_a_group_of_mixed_dtypes_is_reduced_in_each_dtype(rank, runtime, size):
    arrays = [np.full(7, rank + 1, dtype) for dtype in (np.float32, np.float64, np.int32, np.float32)]
    blocking(runtime, ALLREDUCE, arrays, arrays, name="mixed", group=True)
    for array in arrays:
        np.testing.assert_array_equal(array, size * (size + 1) / 2)


@on_ranks(1, 2, 3, 4)
def test_allgather_concatenates_different_numbers_of_rows(rank, runtime, size):
    for _ in range(3):  # from the second time on, the response is cached
        (result,) = blocking(runtime, ALLGATHER, [np.full((rank, 2), rank, np.int64)], name="rows")
        expected = np.concatenate([np.full((r, 2), r) for r in range(size)])
        np.testing.assert_array_equal(np.asarray(result), expected)
        assert result.rows == list(range(size))


@on_ranks(1, 2, 3, 4)
def test_alltoall_sends_uneven_splits(rank, runtime, size):
    splits = [rank + peer for peer in range(size)]
    (result,) = blocking(runtime, ALLTOALL, [np.full(sum(splits), rank, np.int32)], name="a2a", splits=splits)
    np.testing.assert_array_equal(np.asarray(result), np.concatenate([np.full(r + rank, r) for r in range(size)]))
    assert result.rows == [r + rank for r in range(size)]


@on_ranks(1, 2, 3, 4)
def test_reducescatter_gives_the_remaining_rows_to_the_first_ranks(rank, runtime, size):
    rows = 2 * size + 1
    data = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    (result,) = blocking(runtime, REDUCESCATTER, [data + rank], name="rs")
    counts = [2 + (r < rows % size) if size > 1 else rows for r in range(size)]
    first = sum(counts[:rank])
    total = size * data + size * (size - 1) / 2
    np.testing.assert_array_equal(np.asarray(result), total[first : first + counts[rank]])


@on_ranks(1, 2, 3, 4)
def test_broadcast_gives_every_rank_the_tensor_of_the_root(rank, runtime, size):
    array = np.full((3, 3), rank, np.float16)
    blocking(runtime, BROADCAST, [array], [array], name="b", root=size - 1)
    np.testing.assert_array_equal(array, size - 1)


@on_ranks(1, 2, 3, 4)
def test_joined_ranks_contribute_zeros_until_the_last_has_joined(rank, runtime, size):
    for step in range(rank + 1):
        array = np.ones(4, np.float32)
        blocking(runtime, ALLREDUCE, [array], [array], name="uneven")
        np.testing.assert_array_equal(array, size - step)
    assert blocking(runtime, JOIN, []) == size - 1


@pytest.mark.parametrize("joined", [0, 2])
@on_ranks(3)
def test_operations_on_rows_go_on_without_a_joined_rank(rank, runtime, joined):
    live = [r for r in range(3) if r != joined]
    root = live[-1]
    if rank != joined:
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
    blocking(runtime, JOIN, [])


@on_ranks(1, 2, 3, 4)
def test_barriers_empty_tensors_and_scalars(rank, runtime, size):
    blocking(runtime, BARRIER, [])
    empty, scalar = np.zeros((0, 3), np.float32), np.array(float(rank))
    blocking(runtime, ALLREDUCE, [empty], [empty], name="empty")
    blocking(runtime, ALLREDUCE, [scalar], [scalar], name="scalar", reduce_op=MAX)
    assert scalar == size - 1
    assert empty.shape == (0, 3)


@on_ranks(64)
def test_sixty_four_ranks_agree_and_sum(rank, runtime):
    for step in range(3):
        array = np.full(50, rank + step, np.float64)
        blocking(runtime, ALLREDUCE, [array], [array], name="x")
        np.testing.assert_array_equal(array, sum(range(64)) + 64 * step)
