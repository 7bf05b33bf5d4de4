"""Inline allreduces: the data of small cached allreduces travel with the round. Same results and errors, no lane."""

from __future__ import annotations

import json
import random
import threading

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

from .conftest import run_ranks, submit
from .test_errors import caught
from .test_operations import ALLREDUCE, AVERAGE, BARRIER, JOIN, MAX, MIN, PRODUCT, SUM, blocking

AND, OR, XOR = 6, 7, 8
OPS = {"average": AVERAGE, "sum": SUM, "min": MIN, "max": MAX, "product": PRODUCT, "and": AND, "or": OR, "xor": XOR}
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64"]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]


def allreduce(runtime, array, **options):
    result = np.empty_like(array)
    blocking(runtime, ALLREDUCE, [array], [result], **options)
    return result


def values(rank, dtype, count, seed):
    """Values that differ by rank; floats include NaN, infinities, zeros and subnormals."""
    own = np.random.default_rng([rank, seed])
    kind = np.dtype(dtype).kind
    if kind in "bui":
        return own.integers(0, 100, count).astype(dtype)
    if kind == "c":
        return (own.normal(size=count) + 1j * own.normal(size=count)).astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(dtype).smallest_subnormal], dtype)
    numbers = own.normal(size=count).astype(dtype)
    return np.where(own.random(count) < 0.2, own.choice(special, count), numbers).astype(dtype)


def every_case(rank, runtime):
    """Run each operation on each type, with and without factors, three times; returns the bytes or the errors."""
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
def test_every_operation_on_every_type_gives_the_bits_and_the_errors_that_it_gives_in_a_lane(size):
    riding = run_ranks(size, every_case)
    in_a_lane = run_ranks(size, every_case, inline_max="0")
    for (found, metrics), (expected, plain) in zip(riding, in_a_lane, strict=True):
        assert found == expected
        assert plain["inline_operations"] == 0
        # The second and the third run are inline, for all counts but the last, which is too long.
        assert metrics["inline_operations"] == len(found) * 2 // 3 * 3 // 4
        for counter in ("payload_bytes", "op_count.allreduce"):
            assert metrics[counter] == plain[counter]


def test_a_blocking_call_is_one_ride_and_no_operation_of_a_lane():
    counted = threading.Barrier(2)

    def body(rank, runtime):
        array = np.ones(1, np.float32)
        for _ in range(2):
            assert allreduce(runtime, array, name="x")[0] == 2
        blocking(runtime, BARRIER, [])
        before = runtime.metrics()
        for _ in range(50):
            assert allreduce(runtime, array, name="x")[0] == 2
        after = runtime.metrics()
        counted.wait()  # a leaving rank asks for a round
        return {name: after[name] - before[name] for name in ("inline_operations", "fused_operations", "slow_rounds")}

    for grown in run_ranks(2, body):
        assert grown["inline_operations"] == 50
        assert grown["fused_operations"] == 0
        assert grown["slow_rounds"] == 0


@pytest.mark.parametrize("mode", ["event", "tick"])
def test_small_and_large_ones_go_together_in_any_order(size, mode):
    def body(rank, runtime):
        own = random.Random(rank)
        counts = [1, 16, 17, 3, 5000, 8, 100_000, *[16] * 12]
        for step in range(6):
            arrays = [np.full(count, rank + step + i, np.float32) for i, count in enumerate(counts)]
            order = own.sample(range(len(counts)), len(counts))
            handles = [submit(runtime, ALLREDUCE, [arrays[i]], [arrays[i]], name=f"t{i}") for i in order]
            for handle in handles:
                runtime.wait(handle, 60.0)
            for i, array in enumerate(arrays):
                np.testing.assert_array_equal(array, size * (step + i) + size * (size - 1) / 2)
        return runtime.metrics()["inline_operations"]

    assert min(run_ranks(size, body, cycle_mode=mode)) > 0


def test_a_group_rides_if_all_of_it_is_small_and_of_one_type(size):
    def reduce_group(rank, runtime, name, lengths, dtypes):
        arrays = [np.full(n, rank + i, dtype) for i, (n, dtype) in enumerate(zip(lengths, dtypes, strict=True))]
        results = [np.empty_like(array) for array in arrays]
        blocking(runtime, ALLREDUCE, arrays, results, name=name, group=True)
        for i, result in enumerate(results):
            np.testing.assert_array_equal(result, size * i + size * (size - 1) / 2)

    def body(rank, runtime):
        rode = {}
        for name, lengths, dtypes in [
            ("small", (1, 5, 3), ["float32"] * 3),
            ("with.an.empty.one", (2, 0, 1), ["int16"] * 3),
            ("mixed", (1, 1), ["float32", "int32"]),
            ("large", (10, 10), ["float32"] * 2),
        ]:
            before = runtime.metrics()["inline_operations"]
            for _ in range(3):
                reduce_group(rank, runtime, name, lengths, dtypes)
            rode[name] = runtime.metrics()["inline_operations"] - before
        return rode

    for rode in run_ranks(size, body):
        assert rode == {"small": 2, "with.an.empty.one": 2, "mixed": 0, "large": 0}


def test_members_of_crossed_sets_get_the_sums_of_their_sets():
    sets = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [3]]

    def body(rank, runtime):
        everywhere = [(number, ranks) for number, ranks in enumerate([[0, 1, 2, 3], *sets]) if rank in ranks]
        for step in range(5):
            arrays = {number: np.full(4, 10.0**rank + step) for number, _ in everywhere}
            handles = [
                submit(runtime, ALLREDUCE, [arrays[number]], [arrays[number]], name="x", process_set=number)
                for number, _ in random.Random(rank + step).sample(everywhere, len(everywhere))
            ]
            for handle in handles:
                runtime.wait(handle, 60.0)
            for number, ranks in everywhere:
                np.testing.assert_array_equal(arrays[number], sum(10.0**r + step for r in ranks))
        return runtime.metrics()["inline_operations"]

    rode = run_ranks(4, body, sets)
    assert all(count >= 4 for count in rode), rode


def test_averages_divide_by_the_ranks_and_those_of_integers_truncate():
    def body(rank, runtime):
        for _ in range(3):
            assert list(allreduce(runtime, np.array([rank, -rank, 7]), name="i", reduce_op=AVERAGE)) == [1, -1, 7]
            third = allreduce(runtime, np.array([1.0 if rank == 0 else 0.0]), name="f", reduce_op=AVERAGE)
            assert third[0] == 1 / 3
        return runtime.metrics()["inline_operations"]

    assert run_ranks(3, body) == [4, 4, 4]


def test_nothing_rides_while_a_rank_has_joined():
    def body(rank, runtime):
        array = np.ones(2)
        for _ in range(2):
            assert allreduce(runtime, array, name="x")[0] == 3
        blocking(runtime, BARRIER, [])
        before = runtime.metrics()["inline_operations"]
        for _ in range(rank):
            allreduce(runtime, array, name="x")
        assert blocking(runtime, JOIN, []) == 2
        joined = runtime.metrics()["inline_operations"]
        for _ in range(2):
            assert allreduce(runtime, array, name="x")[0] == 3
        return joined - before, runtime.metrics()["inline_operations"] - joined

    # The allreduces before the first join may be inline or not.
    assert {after for _, after in run_ranks(3, body)} == {2}


@pytest.mark.parametrize("knobs", [{"select": "allreduce=shm/twoshot"}, {"inline_max": "4"}, {"cache_capacity": "0"}])
def test_what_the_user_asks_for_is_done(knobs):
    def body(rank, runtime):
        for _ in range(4):
            np.testing.assert_array_equal(allreduce(runtime, np.ones(2, np.float32), name="x"), 2)
        return runtime.metrics()["inline_operations"]

    assert run_ranks(2, body, **knobs) == [0, 0]


@pytest.mark.parametrize("agreement", ["leaders", "coordinator", "tree"])
def test_other_strategies_run_it_in_a_lane(agreement):
    def body(rank, runtime):
        for _ in range(4):
            np.testing.assert_array_equal(allreduce(runtime, np.ones(2, np.float32), name="x"), 3)
        return runtime.metrics()["inline_operations"]

    assert run_ranks(3, body, agreement=agreement) == [0, 0, 0]


def test_mistakes_are_found_as_ever():
    found = threading.Event()

    def body(rank, runtime):
        small = np.ones(2, np.float32)
        for _ in range(3):
            allreduce(runtime, small, name="x")
        error = caught(lambda: allreduce(runtime, np.ones(2 + rank % 2, np.float32), name="x"))
        assert isinstance(error, MismatchError), error
        if rank == 1:  # not before rank 0's duplicate has been refused: the name is free again when both have run
            assert found.wait(60.0)
        first = submit(runtime, ALLREDUCE, [small], [np.empty_like(small)], name="y")
        if rank == 0:
            error = caught(lambda: submit(runtime, ALLREDUCE, [small], [np.empty_like(small)], name="y"))
            assert isinstance(error, DuplicateNameError), error
            found.set()
        runtime.wait(first, 60.0)
        for _ in range(3):
            bad = np.array([np.nan if rank == 1 else 1.0])
            assert isinstance(caught(lambda bad=bad: allreduce(runtime, bad, name="z")), NonFiniteError)
            assert allreduce(runtime, np.ones(1), name="z")[0] == 2
            assert allreduce(runtime, np.ones(1), name="z")[0] == 2
        return runtime.metrics()["inline_operations"]

    assert min(run_ranks(2, body, check_finite="1")) >= 5


@pytest.mark.parametrize("place", ["start", "data", "done"])
def test_a_fault_at_each_place_hits_what_rides(place):
    def body(rank, runtime):
        array = np.ones(1)
        error = caught(lambda: [allreduce(runtime, array, name="x") for _ in range(20)])
        assert isinstance(error, AbortedError) and f"injected at {place}" in str(error), error
        return runtime.metrics()["inline_operations"]

    for rode in run_ranks(3, body, fault=f"{place}:1:7=error"):
        # An operation that waits in a lane, as the first one may, passes "data" any number of times.
        assert (place == "data" or rode >= 1) and rode < 20


def test_a_rank_that_gives_up_half_way_ends_the_job():
    def body(rank, runtime):
        array = np.ones(1)
        error = caught(lambda: [allreduce(runtime, array, name="x") for _ in range(20)])
        assert isinstance(error, InternalError if rank == 1 else AbortedError), error
        assert "allreduce 'x': injected at data" in str(error) if rank == 1 else "rank 1 gave up" in str(error)
        assert isinstance(caught(lambda: allreduce(runtime, array, name="after")), AbortedError)

    run_ranks(3, body, fault="data:1:7=drop")


def test_the_timeline_shows_what_rode(tmp_path):
    def body(rank, runtime):
        for _ in range(4):
            allreduce(runtime, np.ones(1), name="small")

    run_ranks(2, body, timeline=str(tmp_path / "t.json"))
    events = json.loads((tmp_path / "t.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    backends = [event["args"]["backend"] for event in events if "backend" in event.get("args", {})]
    assert backends == ["shm", "round", "round", "round"]
    assert sum(event["name"] == "ROUND_ALLREDUCE" for event in events) == 3
