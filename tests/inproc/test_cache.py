"""The response cache from outside: hits, a name that changes its meaning, and more names than entries."""

from __future__ import annotations

import random

import numpy as np
import pytest

from .conftest import run_ranks, submit
from .test_operations import ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, REDUCESCATTER, blocking

REDUCE, GATHER, SCATTER = 5, 6, 7
WARNING = "HOROCACHE_CACHE_CAPACITY"

# The code and the options of each operation, whose input has two rows for each of three ranks.
OPERATIONS = {
    "allreduce": (ALLREDUCE, {}),
    "allgather": (ALLGATHER, {}),
    "broadcast": (BROADCAST, {"root": 1}),
    "reducescatter": (REDUCESCATTER, {}),
    "alltoall": (ALLTOALL, {"splits": [2, 2, 2]}),
    "reduce": (REDUCE, {"root": 1}),
    "gather": (GATHER, {"root": 1}),
    "scatter": (SCATTER, {"root": 1, "splits": [2, 2, 2]}),
}


def run_one(runtime, rank, name, operation, columns=1):
    """Run one operation on ``name`` among three ranks and return its result as an array."""
    op, options = OPERATIONS[operation]
    mine = np.arange(6.0 * columns).reshape(6, columns) + 100 * rank
    if op == SCATTER and rank != 1:
        options = {"root": 1}
    if op in (ALLREDUCE, BROADCAST, REDUCE):
        blocking(runtime, op, [mine], [mine], name=name, **options)
        return mine
    (result,) = blocking(runtime, op, [mine], name=name, **options)
    return np.asarray(result)


def expected(rank, operation, columns=1):
    """The result of :func:`run_one`; None on ranks where a reduce leaves it undefined."""
    everyone = [np.arange(6.0 * columns).reshape(6, columns) + 100 * r for r in range(3)]
    share = slice(2 * rank, 2 * rank + 2)
    return {
        "allreduce": sum(everyone),
        "allgather": np.concatenate(everyone),
        "broadcast": everyone[1],
        "reducescatter": sum(everyone)[share],
        "alltoall": np.concatenate([of_rank[share] for of_rank in everyone]),
        "reduce": sum(everyone) if rank == 1 else None,
        "gather": np.concatenate(everyone) if rank == 1 else np.zeros((0, columns)),
        "scatter": everyone[1][share],
    }[operation]


def check(runtime, rank, name, operation, columns=1):
    got, want = run_one(runtime, rank, name, operation, columns), expected(rank, operation, columns)
    if want is not None:
        np.testing.assert_array_equal(got, want, f"rank {rank}: {operation} of {columns} columns")


@pytest.mark.parametrize("operation", [*OPERATIONS, "barrier", "group"])
def test_every_operation_is_negotiated_once_and_then_cached(operation):
    def body(rank, runtime):
        for _ in range(4):
            if operation == "barrier":
                blocking(runtime, BARRIER, [])
            elif operation == "group":
                arrays = [np.ones(3), np.ones(5)]
                blocking(runtime, ALLREDUCE, arrays, arrays, name="x", group=True)
                assert arrays[1][0] == 3
            else:
                check(runtime, rank, "x", operation)
        return runtime.metrics()

    for metrics in run_ranks(3, body):
        assert (metrics["cache_misses"], metrics["cache_hits"], metrics["cache_changed"]) == (1, 3, 0)


def test_a_name_may_mean_something_else_later_and_is_negotiated_once_for_it():
    uses = [(operation, columns) for operation in OPERATIONS for columns in (1, 3)]
    random.Random(5).shuffle(uses)

    def body(rank, runtime):
        for operation, columns in uses:
            for _ in range(3):
                check(runtime, rank, "x", operation, columns)
        return runtime.metrics()

    for metrics in run_ranks(3, body):
        # A rank that submits after the others finds that they have erased the old entry, which counts as a miss.
        assert metrics["cache_changed"] + metrics["cache_misses"] == len(uses)
        assert metrics["cache_hits"] == 2 * len(uses)


def test_a_cache_that_is_much_too_small_is_only_slow(capfd):
    """64 names in a cache of 8 entries, which cannot grow, in a different order on each rank."""

    def body(rank, runtime):
        own = random.Random(rank)
        for step in range(40):
            arrays = {name: np.full(1 + name % 3, rank + name + step, np.int64) for name in range(64)}
            handles = [
                submit(runtime, ALLREDUCE, [arrays[name]], [arrays[name]], name=f"t{name}")
                for name in own.sample(range(64), 64)
            ]
            for handle in handles:
                runtime.wait(handle, 60.0)
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, 3 + 3 * (name + step), f"rank {rank}, step {step}, t{name}")
        return runtime.metrics()

    found = run_ranks(3, body, cache_capacity="8")
    assert all(metrics["cache_evictions"] == found[0]["cache_evictions"] > 1000 for metrics in found)
    assert all(metrics["cache_growths"] == 0 for metrics in found)
    assert WARNING not in capfd.readouterr().err


def cycle(runtime, names):
    arrays = [np.ones(1, np.float32) for _ in names]
    handles = [
        submit(runtime, ALLREDUCE, [array], [array], name=name) for name, array in zip(names, arrays, strict=True)
    ]
    for handle in handles:
        runtime.wait(handle, 60.0)
    assert all(array[0] == 2 for array in arrays)


def test_more_names_than_the_default_are_one_warning_and_then_all_cached(capfd):
    names = [f"gradient.{i}" for i in range(1500)]

    def body(rank, runtime):
        for _ in range(2):
            cycle(runtime, names)
        misses = runtime.metrics()["cache_misses"]
        for _ in range(2):
            cycle(runtime, names)
        return runtime.metrics()["cache_misses"] - misses

    assert run_ranks(2, body) == [0, 0]
    assert capfd.readouterr().err.count(WARNING) == 1


@pytest.mark.long
def test_any_number_of_names_is_one_warning_and_then_all_cached(capfd):
    names = [f"gradient.{i}" for i in range(36_000)]

    def body(rank, runtime):
        arrays = [np.ones(1, np.float32) for _ in names]
        for _ in range(2):
            for handle in [submit(runtime, ALLREDUCE, [a], [a], name=n) for n, a in zip(names, arrays, strict=True)]:
                runtime.wait(handle, 60.0)
        return runtime.metrics()["cache_growths"]

    (growths,) = run_ranks(1, body)
    assert growths > 0
    assert capfd.readouterr().err.count(WARNING) == 1


def test_names_that_never_come_back_leave_the_cache_as_it_is(capfd):
    def body(rank, runtime):
        for step in range(30):
            cycle(runtime, [f"layer.{i}.step.{step}" for i in range(100)] + [f"usual.{i}" for i in range(10)])
        return runtime.metrics()

    for metrics in run_ranks(2, body):
        assert metrics["cache_evictions"] > 0 and metrics["cache_growths"] == 0
        assert metrics["cache_hits"] >= 29 * 10, "what does come back stays in the cache"
    assert WARNING not in capfd.readouterr().err


def test_names_are_sent_once_and_cached_steps_send_bits():
    names = [f"{i}." + "long" * 200 for i in range(100)]

    def body(rank, runtime):
        cycle(runtime, names)
        first = runtime.metrics()["control_bytes"]
        for _ in range(10):
            cycle(runtime, names)
        return first, runtime.metrics()["control_bytes"] - first

    for negotiated, cached in run_ranks(2, body):
        assert negotiated > 100 * 800
        assert cached < negotiated, "ten steps together"
