"""Joined ranks, which have no more data: the results of the other ranks' operations, and errors."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest

from horocache.errors import InvalidArgumentError, MismatchError, UnsupportedError

from .conftest import on_ranks, run_ranks
from .operations import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AND,
    AVERAGE,
    BARRIER,
    BROADCAST,
    GATHER,
    JOIN,
    MAX,
    MIN,
    OR,
    PRODUCT,
    REDUCE,
    REDUCESCATTER,
    SCATTER,
    SUM,
    XOR,
    blocking,
    caught,
    finish,
    submit,
    submit_sum,
)

every_divisor = pytest.mark.parametrize("divide_by", ["all", "active"])
FOLDS = {SUM: np.add, MIN: np.minimum, MAX: np.maximum, PRODUCT: np.multiply}
BITS = {AND: np.bitwise_and, OR: np.bitwise_or, XOR: np.bitwise_xor}
SETS = [[0, 1, 3], [1, 2, 3]]


def join(runtime, divide_by="all", process_set=0):
    return blocking(runtime, JOIN, [], divide_by=divide_by, process_set=process_set)


def in_steps(rank, runtime, size, step_of, divide_by="all"):
    """In step s, ranks s, s + 1, ... call ``step_of(live)``, then rank s joins. Rank ``size`` - 1 joins last."""
    for step in range(rank + 1):
        step_of(list(range(step, size)))
    assert join(runtime, divide_by) == size - 1


@pytest.mark.parametrize("cache_capacity", ["0", "1024"])
@on_ranks(3, 4)
def test_rows_in_memory_of_the_caller_leave_out_joined_ranks(rank, runtime, size, cache_capacity):
    def step(live):
        own = np.full((rank + 1, 3), rank, np.float32)
        expected = np.concatenate([np.full((peer + 1, 3), peer) for peer in live])
        for spare in (0, 2):
            result = np.full((len(expected) + spare, 3), -1, np.float32)
            blocking(runtime, ALLGATHER, [own], [result], name=f"rows.{spare}")
            np.testing.assert_array_equal(result[: len(expected)], expected)
            np.testing.assert_array_equal(result[len(expected) :], -1)
        # Each rank has a row for each rank; rows for joined ranks are dropped.
        result = np.full((len(live) + 1, 1), -1, np.float32)
        blocking(runtime, ALLTOALL, [np.arange(size, dtype=np.float32)[:, None] + 10 * rank], [result], name="exchange")
        np.testing.assert_array_equal(result[:-1, 0], [rank + 10 * peer for peer in live])
        assert result[-1, 0] == -1
        summed = np.full((2, 1), -1, np.float32)
        blocking(runtime, REDUCESCATTER, [np.ones((size, 1), np.float32)], [summed], name="sum")
        np.testing.assert_array_equal(summed[:, 0], [len(live), -1])

    in_steps(rank, runtime, size, step)


@every_divisor
@pytest.mark.parametrize("cache_capacity", ["0", "1024"])
@on_ranks(3, 4)
def test_reductions_leave_out_joined_ranks(rank, runtime, size, cache_capacity, divide_by):
    def step(live):
        for dtype in (np.float32, np.float16, np.int32):
            values = [np.array([r + 2, 7 - r, -r - 1], dtype) for r in range(size)]
            folds = FOLDS | (BITS if dtype is np.int32 else {})
            for op, fold in folds.items():
                array = values[rank].copy()
                name = f"{np.dtype(dtype)}.{op}"
                blocking(runtime, ALLREDUCE, [array], [array], name=name, reduce_op=op)
                expected = functools.reduce(fold, [values[r] for r in live])
                np.testing.assert_array_equal(array, expected, f"op {op} with {live}")
            array = np.abs(values[rank])
            blocking(runtime, ALLREDUCE, [array], [array], name=f"{np.dtype(dtype)}.mean", reduce_op=AVERAGE)
            divisor = len(live) if divide_by == "active" else size
            mean = np.sum([np.abs(values[r]) for r in live], axis=0) / divisor
            if dtype is np.int32:
                mean = np.floor(mean)
            np.testing.assert_allclose(array, mean, rtol=1e-3 if dtype is np.float16 else 1e-6)

    in_steps(rank, runtime, size, step, divide_by)


@every_divisor
@on_ranks(4, fusion_threshold="100000")
def test_averages_of_groups_and_reducescatter_divide_as_join_asks(rank, runtime, divide_by):
    def step(live):
        divisor = len(live) if divide_by == "active" else 4
        arrays = [np.full(n, float(rank + i)) for i, n in enumerate((3, 0, 50_000))]
        blocking(runtime, ALLREDUCE, arrays, arrays, name="group", group=True, reduce_op=AVERAGE)
        for i, array in enumerate(arrays):
            np.testing.assert_allclose(array, (sum(live) + i * len(live)) / divisor)
        named = np.full(3, float(rank))
        blocking(runtime, ALLREDUCE, [named], [named], name="named", backend="shm", reduce_op=AVERAGE)
        np.testing.assert_allclose(named, sum(live) / divisor)
        source = np.arange(40.0).reshape(10, 4) + rank  # uneven: 3, 3, 2 and 2 rows; those of joined ranks drop
        (part,) = blocking(runtime, REDUCESCATTER, [source], name="part", reduce_op=AVERAGE)
        first = [0, 3, 6, 8, 10]
        total = np.arange(40.0).reshape(10, 4) * len(live) + sum(live)
        np.testing.assert_allclose(np.asarray(part), total[first[rank] : first[rank + 1]] / divisor)

    in_steps(rank, runtime, 4, step, divide_by)


@pytest.mark.parametrize("cache_capacity", ["0", "1024"])
@on_ranks(4)
def test_operations_on_rows_take_none_from_joined_ranks_and_drop_rows_for_them(rank, runtime, cache_capacity):
    def step(live):
        (rows,) = blocking(runtime, ALLGATHER, [np.full((rank + 1, 2), rank)], name="rows")
        np.testing.assert_array_equal(np.asarray(rows)[:, 0], np.repeat(live, [r + 1 for r in live]))
        assert rows.rows == [r + 1 if r in live else 0 for r in range(4)]
        blocking(runtime, BARRIER, [])
        splits = [1, 2, 0, 3]
        source = np.repeat(np.arange(4) * 10 + rank, splits)
        (swapped,) = blocking(runtime, ALLTOALL, [source], name="swap", splits=splits)
        expected = np.repeat(np.array(live) + 10 * rank, splits[rank])
        np.testing.assert_array_equal(np.asarray(swapped), expected)
        array = np.full(3, rank)
        blocking(runtime, BROADCAST, [array], [array], name="from3", root=3)
        np.testing.assert_array_equal(array, 3)

    in_steps(rank, runtime, 4, step)


@pytest.mark.parametrize("cache_capacity", ["0", "1024"])
@on_ranks(4)
def test_operations_whose_root_has_joined_raise(rank, runtime, cache_capacity):
    def rooted(root):
        array, out = np.full(4, rank + 1.0), np.zeros(4)
        yield lambda: blocking(runtime, REDUCE, [array], [out], name=f"reduce{root}", root=root)
        yield lambda: blocking(runtime, BROADCAST, [array], [out], name=f"broadcast{root}", root=root)
        yield lambda: blocking(runtime, GATHER, [array], name=f"gather{root}", root=root)
        splits = [1, 1, 1, 1] if rank == root else None
        yield lambda: blocking(runtime, SCATTER, [array], name=f"scatter{root}", root=root, splits=splits)

    def step(live):
        for root in range(4):
            for call in rooted(root):
                error = caught(call)
                if root in live:
                    assert error is None, error
                else:
                    assert isinstance(error, UnsupportedError), error
                    assert f"root, rank {root}, has joined" in str(error)

    in_steps(rank, runtime, 4, step)


@on_ranks(4)
def test_rooted_operations_use_the_data_of_ranks_that_have_not_joined(rank, runtime):
    def step(live):
        array, out = np.full(4, rank + 1.0), np.zeros(4)
        blocking(runtime, REDUCE, [array], [out], name="reduce", root=3)
        if rank == 3:
            np.testing.assert_array_equal(out, sum(live) + len(live))
        (rows,) = blocking(runtime, GATHER, [np.full(rank + 1, rank)], name="gather", root=3)
        np.testing.assert_array_equal(
            np.asarray(rows), np.repeat(live, [r + 1 for r in live]) if rank == 3 else np.zeros(0)
        )
        splits = [1, 2, 3, 4] if rank == 3 else None
        source = np.repeat(np.arange(4), [1, 2, 3, 4])
        (part,) = blocking(runtime, SCATTER, [source], name="scatter", root=3, splits=splits)
        np.testing.assert_array_equal(np.asarray(part), np.full(rank + 1, rank))

    in_steps(rank, runtime, 4, step)


@every_divisor
def test_a_rank_may_join_one_set_and_go_on_in_others(divide_by):
    def train(rank, runtime):
        def use(number, name, live):
            array = np.full(2, rank + 1.0)
            blocking(runtime, ALLREDUCE, [array], [array], name=name, process_set=number, reduce_op=AVERAGE)
            ranks = SETS[number - 1] if number else range(4)
            divisor = len(live) if divide_by == "active" else len(ranks)
            np.testing.assert_allclose(array, sum(r + 1 for r in live) / divisor)

        # Rank 1 joins set 1 in one thread and uses set 2 and the global set in another.
        last_joined = []

        def join_first():
            last_joined.append(join(runtime, divide_by, 1))

        if rank == 1:
            joining = threading.Thread(target=join_first, daemon=True)
            joining.start()
        elif rank != 2:
            for name in ("a", "a", "b"):
                use(1, name, [0, 3])
        for step in range(3):
            use(0, f"all{step}", [0, 1, 2, 3])
            if rank != 0:
                use(2, f"two{step}", [1, 2, 3])
        if rank == 1:
            error = caught(lambda: use(1, "late", [1]))
            assert isinstance(error, InvalidArgumentError) and "after join() on rank 1" in str(error), error
            blocking(runtime, BARRIER, [])
            joining.join(60.0)
        elif rank == 2:
            blocking(runtime, BARRIER, [])
            return None
        else:
            blocking(runtime, BARRIER, [])
            join_first()
        use(1, "again", [0, 1, 3])  # all ranks have joined set 1, which ends the join
        return last_joined[0]

    answers = run_ranks(4, train, SETS)
    assert answers[2] is None and answers[0] == answers[1] == answers[3] and answers[0] in (0, 3)


def test_joins_with_different_divisors_raise_and_the_job_goes_on():
    joined = threading.Event()

    def join_with_different_divisors(rank, runtime):
        array = np.ones(1)
        if rank == 2:
            handle = submit(runtime, JOIN, [], None, process_set=1, divide_by="active")
            finish(runtime, submit_sum(runtime, array, name="announced"))
            joined.set()
            error = caught(lambda: finish(runtime, handle))
        else:
            finish(runtime, submit_sum(runtime, array, name="announced"))
            assert joined.wait(60.0)
            if rank == 0:
                return None
            error = caught(lambda: join(runtime, "all" if rank == 3 else "active", 1))
        assert isinstance(error, MismatchError), error
        assert "divide_by 'active'" in str(error) and "divide_by 'all'" in str(error), error
        assert "rank 3" in str(error) and "process set 1" in str(error), error
        for _ in range(2):
            array = np.ones(1)
            blocking(runtime, ALLREDUCE, [array], [array], name="after", process_set=1)
            assert array[0] == 3
        assert join(runtime, "active", 1) in (1, 2, 3)
        return str(error)

    errors = run_ranks(4, join_with_different_divisors, [[1, 2, 3]])
    assert errors[1] == errors[2] == errors[3]


@on_ranks(2)
def test_an_unknown_divisor_raises(rank, runtime):
    error = caught(lambda: join(runtime, "some"))
    assert isinstance(error, InvalidArgumentError) and "'some'" in str(error) and "'active'" in str(error), error
