"""Inline allreduces, whose data travels with the round: results and errors equal those of a lane."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from horocache.errors import (
    AbortedError,
    DuplicateNameError,
    InternalError,
    MismatchError,
    NonFiniteError,
    UnsupportedError,
)

from .conftest import on_ranks, run_ranks
from .operations import (
    ALLREDUCE,
    AND,
    AVERAGE,
    BARRIER,
    JOIN,
    MAX,
    MIN,
    OR,
    PRODUCT,
    SUM,
    XOR,
    blocking,
    caught,
    finish,
    submit,
    submit_sum,
)

OPS = {"average": AVERAGE, "sum": SUM, "min": MIN, "max": MAX, "product": PRODUCT, "and": AND, "or": OR, "xor": XOR}
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64"]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]


def allreduce(runtime, array, **options):
    result = np.empty_like(array)
    blocking(runtime, ALLREDUCE, [array], [result], **options)
    return result


def inline_operations(runtime):
    return runtime.metrics()["inline_operations"]


def values(rank, dtype, count, seed):
    """Values that differ by rank; floats include NaN, infinities, zeros and subnormals."""
    generator = np.random.default_rng([rank, seed])
    kind = np.dtype(dtype).kind
    if kind in "bui":
        return generator.integers(0, 100, count).astype(dtype)
    if kind == "c":
        return (generator.normal(size=count) + 1j * generator.normal(size=count)).astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(dtype).smallest_subnormal], dtype)
    numbers = generator.normal(size=count).astype(dtype)
    return np.where(generator.random(count) < 0.2, generator.choice(special, count), numbers).astype(dtype)


def run_all_cases(rank, runtime):
    """Run each operation on each type, with and without factors, three times; return the bytes or the errors."""
    found = {}
    for dtype in DTYPES:
        width = np.dtype(dtype).itemsize
        for name, reduce_op in OPS.items():
            for count in (1, 3, 64 // width, 64 // width + 1):
                for scales in ({}, {"prescale": 0.3, "postscale": 1.7}):
                    case = f"{name}.{dtype}.{count}.{len(scales)}"
                    for step in range(3):
                        array = values(rank, dtype, count, step)
                        options = {"name": case, "reduce_op": reduce_op, **scales}
                        try:
                            found[case, step] = allreduce(runtime, array, **options).tobytes()
                        except UnsupportedError as error:
                            found[case, step] = str(error)
    return found, runtime.metrics()


@pytest.mark.parametrize("size", [1, 2, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 4))])
def test_inline_results_and_errors_equal_those_of_a_lane(size):
    inline = run_ranks(size, run_all_cases)
    in_a_lane = run_ranks(size, run_all_cases, inline_max="0")
    for (found, metrics), (expected, lane_metrics) in zip(inline, in_a_lane, strict=True):
        assert found == expected
        assert lane_metrics["inline_operations"] == 0
        # The second and the third run are inline, for all counts but the last, which is too long.
        assert metrics["inline_operations"] == len(found) * 2 // 3 * 3 // 4
        for counter in ("payload_bytes", "op_count.allreduce"):
            assert metrics[counter] == lane_metrics[counter]


@on_ranks(2)
def test_a_blocking_call_is_one_inline_allreduce_and_uses_no_lane(rank, runtime, barrier):
    array = np.ones(1, np.float32)
    for _ in range(2):
        assert allreduce(runtime, array, name="x")[0] == 2
    blocking(runtime, BARRIER, [])
    before = runtime.metrics()
    for _ in range(50):
        assert allreduce(runtime, array, name="x")[0] == 2
    after = runtime.metrics()
    barrier.wait()  # a leaving rank asks for a round
    for counter, grown in (("inline_operations", 50), ("fused_operations", 0), ("slow_rounds", 0)):
        assert after[counter] - before[counter] == grown, counter


@pytest.mark.parametrize("cycle_mode", ["event", "tick"])
@on_ranks(1, 2, 3, 4)
def test_small_and_large_tensors_mix_in_any_order(rank, runtime, size, cycle_mode):
    generator = random.Random(rank)
    counts = [1, 16, 17, 3, 5000, 8, 100_000, *[16] * 12]
    for step in range(6):
        arrays = [np.full(count, rank + step + i, np.float32) for i, count in enumerate(counts)]
        order = generator.sample(range(len(counts)), len(counts))
        finish(runtime, *[submit_sum(runtime, arrays[i], name=f"t{i}") for i in order])
        for i, array in enumerate(arrays):
            np.testing.assert_array_equal(array, size * (step + i) + size * (size - 1) / 2)
    assert inline_operations(runtime) > 0


@on_ranks(1, 2, 3, 4)
def test_a_group_is_inline_if_it_is_small_as_a_whole_and_of_one_type(rank, runtime, size):
    for name, lengths, dtypes, inline in [
        ("small", (1, 5, 3), ["float32"] * 3, 2),
        ("with.an.empty.one", (2, 0, 1), ["int16"] * 3, 2),
        ("mixed", (1, 1), ["float32", "int32"], 0),
        ("large", (10, 10), ["float32"] * 2, 0),
    ]:
        before = inline_operations(runtime)
        for _ in range(3):
            arrays = [np.full(n, rank + i, dtype) for i, (n, dtype) in enumerate(zip(lengths, dtypes, strict=True))]
            results = [np.empty_like(array) for array in arrays]
            blocking(runtime, ALLREDUCE, arrays, results, name=name, group=True)
            for i, result in enumerate(results):
                np.testing.assert_array_equal(result, size * i + size * (size - 1) / 2)
        assert inline_operations(runtime) - before == inline, name


SETS = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [3]]


@on_ranks(4, process_sets=SETS)
def test_members_of_crossed_sets_get_the_sums_of_their_sets(rank, runtime):
    sets_of_rank = [(number, ranks) for number, ranks in enumerate([[0, 1, 2, 3], *SETS]) if rank in ranks]
    for step in range(5):
        arrays = {number: np.full(4, 10.0**rank + step) for number, _ in sets_of_rank}
        order = random.Random(rank + step).sample(sets_of_rank, len(sets_of_rank))
        finish(runtime, *[submit_sum(runtime, arrays[number], name="x", process_set=number) for number, _ in order])
        for number, ranks in sets_of_rank:
            np.testing.assert_array_equal(arrays[number], sum(10.0**r + step for r in ranks))
    assert inline_operations(runtime) >= 4


@on_ranks(3)
def test_averages_divide_by_the_ranks_and_averages_of_integers_truncate(rank, runtime):
    for _ in range(3):
        assert list(allreduce(runtime, np.array([rank, -rank, 7]), name="i", reduce_op=AVERAGE)) == [1, -1, 7]
        third = allreduce(runtime, np.array([1.0 if rank == 0 else 0.0]), name="f", reduce_op=AVERAGE)
        assert third[0] == 1 / 3
    assert inline_operations(runtime) == 4


@on_ranks(3)
def test_no_allreduce_is_inline_while_a_rank_has_joined(rank, runtime):
    array = np.ones(2)
    for _ in range(2):
        assert allreduce(runtime, array, name="x")[0] == 3
    blocking(runtime, BARRIER, [])
    for _ in range(rank):  # these may be inline before the first rank joins
        allreduce(runtime, array, name="x")
    assert blocking(runtime, JOIN, []) == 2
    joined = inline_operations(runtime)
    for _ in range(2):
        assert allreduce(runtime, array, name="x")[0] == 3
    assert inline_operations(runtime) - joined == 2


@pytest.mark.parametrize("knobs", [{"select": "allreduce=shm/twoshot"}, {"inline_max": "4"}, {"cache_capacity": "0"}])
def test_knobs_switch_inline_allreduce_off(knobs):
    def reduce_small(rank, runtime):
        for _ in range(4):
            np.testing.assert_array_equal(allreduce(runtime, np.ones(2, np.float32), name="x"), 2)
        assert inline_operations(runtime) == 0

    run_ranks(2, reduce_small, **knobs)


@pytest.mark.parametrize("agreement", ["leaders", "coordinator", "tree"])
@on_ranks(3)
def test_other_agreement_strategies_run_small_allreduces_in_a_lane(rank, runtime, agreement):
    for _ in range(4):
        np.testing.assert_array_equal(allreduce(runtime, np.ones(2, np.float32), name="x"), 3)
    assert inline_operations(runtime) == 0


@on_ranks(2, check_finite="1")
def test_mismatches_duplicate_names_and_values_that_are_not_finite_raise(rank, runtime, event):
    small = np.ones(2, np.float32)
    for _ in range(3):
        allreduce(runtime, small, name="x")
    error = caught(lambda: allreduce(runtime, np.ones(2 + rank % 2, np.float32), name="x"))
    assert isinstance(error, MismatchError), error
    if rank == 1:  # not before rank 0's duplicate has been refused: the name is free again when both have run
        assert event.wait(60.0)
    first = submit(runtime, ALLREDUCE, [small], [np.empty_like(small)], name="y")
    if rank == 0:
        error = caught(lambda: submit(runtime, ALLREDUCE, [small], [np.empty_like(small)], name="y"))
        assert isinstance(error, DuplicateNameError), error
        event.set()
    finish(runtime, first)
    for _ in range(3):
        bad = np.array([np.nan if rank == 1 else 1.0])
        assert isinstance(caught(lambda bad=bad: allreduce(runtime, bad, name="z")), NonFiniteError)
        assert allreduce(runtime, np.ones(1), name="z")[0] == 2
        assert allreduce(runtime, np.ones(1), name="z")[0] == 2
    assert inline_operations(runtime) >= 5


@pytest.mark.parametrize("place", ["start", "data", "inline", "done"])
def test_a_fault_at_each_place_ends_inline_allreduces(place):
    def reduce_until_the_fault(rank, runtime):
        array = np.ones(1)
        error = caught(lambda: [allreduce(runtime, array, name="x") for _ in range(20)])
        assert isinstance(error, AbortedError) and f"injected at {place}" in str(error), error
        # An operation that waits in a lane, as the first one may, visits "data" any number of times.
        inline = inline_operations(runtime)
        assert (place == "data" or inline >= 1) and inline < 20

    run_ranks(3, reduce_until_the_fault, fault=f"{place}:1:7=error")


@on_ranks(3, fault="inline:1:6=drop")
def test_a_rank_that_drops_an_inline_allreduce_halfway_ends_the_job(rank, runtime):
    array = np.ones(1)
    error = caught(lambda: [allreduce(runtime, array, name="x") for _ in range(20)])
    assert isinstance(error, InternalError if rank == 1 else AbortedError), error
    words = "allreduce 'x': injected at inline" if rank == 1 else "rank 1 abandoned an inline operation"
    assert words in str(error), error
    assert isinstance(caught(lambda: allreduce(runtime, array, name="after")), AbortedError)


def test_the_timeline_shows_inline_allreduces(tmp_path):
    def reduce_small(rank, runtime):
        for _ in range(4):
            allreduce(runtime, np.ones(1), name="small")

    run_ranks(2, reduce_small, timeline=str(tmp_path / "t.json"))
    events = json.loads((tmp_path / "t.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    backends = [event["args"]["backend"] for event in events if "backend" in event.get("args", {})]
    assert backends == ["shm", "round", "round", "round"]
    assert sum(event["name"] == "ROUND_ALLREDUCE" for event in events) == 3
