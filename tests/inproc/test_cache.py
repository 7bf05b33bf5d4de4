"""The response cache, seen from outside: hits, a name that changes its operation, and more names than entries."""

from __future__ import annotations

import random

import numpy as np
import pytest

from .conftest import on_ranks, run_ranks
from .operations import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCESCATTER,
    SCATTER,
    blocking,
    finish,
    submit_sum,
)

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
    inputs = [np.arange(6.0 * columns).reshape(6, columns) + 100 * r for r in range(3)]
    share = slice(2 * rank, 2 * rank + 2)
    return {
        "allreduce": sum(inputs),
        "allgather": np.concatenate(inputs),
        "broadcast": inputs[1],
        "reducescatter": sum(inputs)[share],
        "alltoall": np.concatenate([array[share] for array in inputs]),
        "reduce": sum(inputs) if rank == 1 else None,
        "gather": np.concatenate(inputs) if rank == 1 else np.zeros((0, columns)),
        "scatter": inputs[1][share],
    }[operation]


def check(runtime, rank, name, operation, columns=1):
    got, want = run_one(runtime, rank, name, operation, columns), expected(rank, operation, columns)
    if want is not None:
        np.testing.assert_array_equal(got, want, f"rank {rank}: {operation} of {columns} columns")


def reduce_all(runtime, names, arrays):
    finish(runtime, *[submit_sum(runtime, array, name=name) for name, array in zip(names, arrays, strict=True)])


def step_of_two_ranks(runtime, names):
    arrays = [np.ones(1, np.float32) for _ in names]
    reduce_all(runtime, names, arrays)
    assert all(array[0] == 2 for array in arrays)


@pytest.mark.parametrize("operation", [*OPERATIONS, "barrier", "group"])
@on_ranks(3)
def test_every_operation_is_negotiated_once_and_then_cached(rank, runtime, operation):
    for _ in range(4):
        if operation == "barrier":
            blocking(runtime, BARRIER, [])
        elif operation == "group":
            arrays = [np.ones(3), np.ones(5)]
            blocking(runtime, ALLREDUCE, arrays, arrays, name="x", group=True)
            assert arrays[1][0] == 3
        else:
            check(runtime, rank, "x", operation)
    metrics = runtime.metrics()
    assert (metrics["cache_misses"], metrics["cache_hits"], metrics["cache_changed"]) == (1, 3, 0)


@on_ranks(3)
def test_a_name_with_another_operation_is_negotiated_once_and_then_cached(rank, runtime):
    uses = [(operation, columns) for operation in OPERATIONS for columns in (1, 3)]
    random.Random(5).shuffle(uses)
    for operation, columns in uses:
        for _ in range(3):
            check(runtime, rank, "x", operation, columns)
    metrics = runtime.metrics()
    # A rank that submits after the others finds that they have erased the old entry, which counts as a miss.
    assert metrics["cache_changed"] + metrics["cache_misses"] == len(uses)
    assert metrics["cache_hits"] == 2 * len(uses)


def test_a_cache_that_is_much_too_small_gives_correct_results(capfd):
    """64 names in a cache of 8 entries, which cannot grow, in a different order on each rank."""

    def train(rank, runtime):
        generator = random.Random(rank)
        for step in range(40):
            arrays = {name: np.full(1 + name % 3, rank + name + step, np.int64) for name in range(64)}
            order = generator.sample(range(64), 64)
            reduce_all(runtime, [f"t{name}" for name in order], [arrays[name] for name in order])
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, 3 + 3 * (name + step), f"rank {rank}, step {step}, t{name}")
        return runtime.metrics()

    found = run_ranks(3, train, cache_capacity="8")
    assert all(metrics["cache_evictions"] == found[0]["cache_evictions"] > 1000 for metrics in found)
    assert all(metrics["cache_growths"] == 0 for metrics in found)
    assert WARNING not in capfd.readouterr().err


def test_more_names_than_the_default_capacity_give_one_warning_and_are_cached(capfd):
    names = [f"gradient.{i}" for i in range(1500)]

    def train(rank, runtime):
        for _ in range(2):
            step_of_two_ranks(runtime, names)
        misses = runtime.metrics()["cache_misses"]
        for _ in range(2):
            step_of_two_ranks(runtime, names)
        assert runtime.metrics()["cache_misses"] == misses

    run_ranks(2, train)
    assert capfd.readouterr().err.count(WARNING) == 1


@pytest.mark.long
def test_36000_names_give_one_warning_and_are_cached(capfd):
    names = [f"gradient.{i}" for i in range(36_000)]

    def train(rank, runtime):
        arrays = [np.ones(1, np.float32) for _ in names]
        for _ in range(2):
            reduce_all(runtime, names, arrays)
        assert runtime.metrics()["cache_growths"] > 0

    run_ranks(1, train)
    assert capfd.readouterr().err.count(WARNING) == 1


def test_names_that_never_return_do_not_make_the_cache_grow(capfd):
    def train(rank, runtime):
        for step in range(30):
            step_of_two_ranks(
                runtime, [f"layer.{i}.step.{step}" for i in range(100)] + [f"usual.{i}" for i in range(10)]
            )
        metrics = runtime.metrics()
        assert metrics["cache_evictions"] > 0 and metrics["cache_growths"] == 0
        assert metrics["cache_hits"] >= 29 * 10, "names that return have been evicted"

    run_ranks(2, train)
    assert WARNING not in capfd.readouterr().err


@on_ranks(2)
def test_names_are_sent_once_and_cached_steps_send_bits(rank, runtime):
    names = [f"{i}." + "long" * 200 for i in range(100)]
    step_of_two_ranks(runtime, names)
    negotiated = runtime.metrics()["control_bytes"]
    for _ in range(10):
        step_of_two_ranks(runtime, names)
    cached = runtime.metrics()["control_bytes"] - negotiated
    assert negotiated > 100 * 800
    assert cached < negotiated, "ten cached steps together send more than the first step"
