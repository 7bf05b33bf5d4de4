"""Several process sets in one job: crossed sets, sets used from several threads, and failures within a set."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from horocache.errors import AbortedError, InvalidArgumentError, MismatchError, ShutDownError, StallError

from .conftest import on_ranks, run_ranks
from .operations import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVERAGE,
    BARRIER,
    BROADCAST,
    REDUCESCATTER,
    blocking,
    caught,
    finish,
    submit_sum,
)

SETS = [[0, 1, 2], [1, 2, 3], [0, 2, 3]]  # numbers 1, 2 and 3; every two share two ranks
PAIRS_AND_HALVES = [[r, r + 1] for r in range(7)] + [[0, 7], [0, 1, 2, 3], [4, 5, 6, 7]]


def members(number, size=4):
    return list(range(size)) if number == 0 else SETS[number - 1]


def sets_of(rank):
    """The numbers of the sets that contain a rank."""
    return [number for number in range(4) if rank in members(number)]


def submit_to_set(runtime, number, name, value, count=5):
    array = np.full(count, value, np.float64)
    return submit_sum(runtime, array, name=name, process_set=number), array


def reduce_in_set(runtime, number, name, value=1, count=5):
    """Submit an allreduce and wait without a time limit, so that the runtime may report a deadlock."""
    runtime.wait(submit_to_set(runtime, number, name, value, count)[0])


def in_threads(functions):
    """Run each function in its own thread; raise the first error here."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@on_ranks(4, process_sets=SETS)
def test_every_operation_runs_among_the_members_alone(rank, runtime):
    for _ in range(2):  # the second time from the cache
        for number in sets_of(rank):
            ranks = members(number)
            index = ranks.index(rank)
            options = {"process_set": number}
            array = np.full(3, rank + 1.0)
            blocking(runtime, ALLREDUCE, [array], [array], name="sum", **options)
            np.testing.assert_array_equal(array, sum(ranks) + len(ranks))
            blocking(runtime, ALLREDUCE, [array], [array], name="mean", reduce_op=AVERAGE, **options)
            np.testing.assert_array_equal(array, sum(ranks) + len(ranks))
            (rows,) = blocking(runtime, ALLGATHER, [np.full((rank + 1, 2), rank)], name="rows", **options)
            np.testing.assert_array_equal(np.asarray(rows)[:, 0], np.repeat(ranks, [r + 1 for r in ranks]))
            for root, world_root in enumerate(ranks):
                array = np.full(3, rank)
                blocking(runtime, BROADCAST, [array], [array], name=f"from{root}", root=root, **options)
                np.testing.assert_array_equal(array, world_root)
            source = np.arange(2.0 * len(ranks)) + rank
            (part,) = blocking(runtime, REDUCESCATTER, [source], name="part", **options)
            np.testing.assert_array_equal(
                np.asarray(part), [len(ranks) * (2 * index + i) + sum(ranks) for i in range(2)]
            )
            (swapped,) = blocking(runtime, ALLTOALL, [np.full(len(ranks), rank)], name="swap", **options)
            np.testing.assert_array_equal(np.asarray(swapped), ranks)
            blocking(runtime, BARRIER, [], **options)


@on_ranks(4, process_sets=SETS)
def test_ranks_submit_to_crossed_sets_in_opposite_orders_without_waiting(rank, runtime):
    for step in range(20):
        numbers = sets_of(rank) if rank % 2 else sets_of(rank)[::-1]
        started = [(number, *submit_to_set(runtime, number, "x", rank + step)) for number in numbers]
        for number, handle, array in random.Random(step * 7 + rank).sample(started, len(started)):
            finish(runtime, handle)
            np.testing.assert_array_equal(array, sum(members(number)) + step * len(members(number)))


@on_ranks(4, process_sets=SETS)
def test_threads_that_wait_use_crossed_sets_in_opposite_orders(rank, runtime):
    def use(number):
        for step in range(30):
            handle, array = submit_to_set(runtime, number, "x", rank + step)
            finish(runtime, handle)
            np.testing.assert_array_equal(array, sum(members(number)) + step * len(members(number)))

    numbers = sets_of(rank) if rank % 2 else sets_of(rank)[::-1]
    in_threads([lambda number=number: use(number) for number in numbers])


@pytest.mark.parametrize("agreement", ["bits", "tree"])
@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_over_three_overlapping_sets(seed, agreement):
    plan = random.Random(seed)
    steps = [
        [(plan.randrange(4), f"t{plan.randrange(6)}.{i}", plan.choice([1, 100, 9000])) for i in range(12)]
        for _ in range(6)
    ]

    def run_schedule(rank, runtime):
        generator = random.Random(1000 * seed + rank)
        for step, operations in enumerate(steps):
            todo = [op for op in operations if rank in members(op[0])]
            generator.shuffle(todo)
            cut = generator.randrange(len(todo) + 1)

            def part(chosen, order, step=step):
                started = []
                for number, name, count in chosen:
                    started.append((number, *submit_to_set(runtime, number, name, rank + step, count)))
                order.shuffle(started)
                for number, handle, array in started:
                    finish(runtime, handle)
                    expected = sum(members(number)) + step * len(members(number))
                    np.testing.assert_array_equal(array, expected, f"seed {seed} step {step} rank {rank}")

            orders = [random.Random(generator.random()) for _ in range(2)]
            in_threads([lambda: part(todo[:cut], orders[0]), lambda: part(todo[cut:], orders[1])])  # noqa: B023

    run_ranks(4, run_schedule, SETS, cache_capacity="16" if seed % 2 else "1024", agreement=agreement)


@on_ranks(8, process_sets=PAIRS_AND_HALVES)
def test_eight_ranks_in_a_ring_of_pairs_and_two_halves(rank, runtime):
    numbers = [number for number, ranks in enumerate(PAIRS_AND_HALVES, 1) if rank in ranks]
    generator = random.Random(rank)
    for step in range(10):
        order = generator.sample(numbers, len(numbers))
        started = [(number, *submit_to_set(runtime, number, "x", rank + step)) for number in order]
        for number, handle, array in started:
            finish(runtime, handle)
            ranks = PAIRS_AND_HALVES[number - 1]
            np.testing.assert_array_equal(array, sum(ranks) + step * len(ranks))


@on_ranks(4, process_sets=SETS)
def test_each_set_has_its_own_names_and_counts_its_own_automatic_names(rank, runtime):
    started = [(number, *submit_to_set(runtime, number, "same", 1)) for number in sets_of(rank)]
    for number, handle, array in started:
        finish(runtime, handle)
        np.testing.assert_array_equal(array, len(members(number)))
    # Ranks use different numbers of sets, in different orders.
    numbers = sets_of(rank)[:: -1 if rank == 2 else 1]
    started = [(number, *submit_to_set(runtime, number, None, rank)) for number in numbers for _ in range(3)]
    for number, handle, array in started:
        finish(runtime, handle)
        np.testing.assert_array_equal(array, sum(members(number)))
    metrics = runtime.metrics()
    assert metrics["op_count.allreduce"] == 4 * len(numbers)
    assert metrics["cache_misses"] == 4 * len(numbers)


@on_ranks(4, process_sets=SETS)
def test_counters_are_sums_over_all_sets(rank, runtime):
    for _ in range(5):
        for number in sets_of(rank):
            finish(runtime, submit_to_set(runtime, number, "x", rank)[0])
    metrics, sets = runtime.metrics(), len(sets_of(rank))
    assert metrics["cache_hits"] == 4 * sets
    assert metrics["cache_misses"] == sets
    assert metrics["operations"] == 5 * sets
    assert metrics["payload_bytes"] == 5 * sets * 40


@on_ranks(4, process_sets=SETS)
def test_a_set_without_the_rank_and_a_set_that_is_not_registered_raise(rank, runtime):
    for number in {1, 2, 3} - set(sets_of(rank)):
        error = caught(lambda number=number: submit_to_set(runtime, number, "x", 1))
        assert isinstance(error, InvalidArgumentError), error
        ranks = ", ".join(map(str, members(number)))
        assert f"rank {rank} is not in process set {number} (ranks {ranks})" in str(error)
    for number in (4, -1):
        error = caught(lambda number=number: submit_to_set(runtime, number, "x", 1))
        assert isinstance(error, InvalidArgumentError) and f"no process set {number}" in str(error), error
    blocking(runtime, BARRIER, [])


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ([[0, 3]], "process set 1 ([0, 3]) has ranks that the job does not have: it has 3, 0 to 2"),
        ([[-1, 0]], "process set 1 ([-1, 0]) has ranks that the job does not have"),
        ([[0, 1], []], "process set 2 ([]) has no ranks"),
        ([[1, 0]], "process set 1 ([1, 0]) must have distinct ranks in ascending order"),
        ([[0, 1], [2], [0, 1]], "process set 3 ([0, 1]) has the ranks of process set 1, which is registered already"),
        ([[0, 1, 2]], "process set 1 ([0, 1, 2]) has the ranks of the global process set"),
    ],
)
def test_invalid_process_sets_raise(sets, words):
    error = caught(lambda: run_ranks(3, lambda rank, runtime: None, sets))
    assert isinstance(error, InvalidArgumentError) and words in str(error), error


@on_ranks(4, process_sets=SETS)
def test_a_mismatch_in_one_set_names_ranks_of_the_job_and_ends_no_other_set(rank, runtime):
    def mismatch(action):
        error = caught(action)
        assert isinstance(error, MismatchError), error
        return str(error)

    running = [submit_to_set(runtime, number, "good", 1) for number in sets_of(rank)]
    if 2 in sets_of(rank):
        count = 4 if rank == 3 else 5
        text = mismatch(lambda: finish(runtime, submit_to_set(runtime, 2, "bad", 1, count)[0]))
        assert "allreduce 'bad' of process set 2" in text
        assert "rank 3" in text and "[4]" in text and "[5]" in text, text
        array, root = np.ones(2), 0 if rank == 3 else 2
        text = mismatch(lambda: blocking(runtime, BROADCAST, [array], [array], name="root", root=root, process_set=2))
        assert "root 1" in text and "root 3" in text, text
        # The data plane detects this one; it knows only the ranks' numbers within the set.
        rows = [1, 1, 2] if rank == 3 else [2, 1, 1]
        text = mismatch(
            lambda: blocking(runtime, REDUCESCATTER, [np.ones(4)], name="uneven", splits=rows, process_set=2)
        )
        assert "rank 3 gives it" in text, text
    for handle, _ in running:
        finish(runtime, handle)
    for number in sets_of(rank):
        finish(runtime, submit_to_set(runtime, number, "after", 1)[0])


@on_ranks(4, process_sets=SETS)
def test_waits_in_different_sets_that_will_end_are_no_deadlock(rank, runtime, event):
    # Rank 0 waits in set 3, and goes on when rank 3 comes. If rank 0 waited in set 1, that set would be stuck.
    if rank == 0:
        first, _ = submit_to_set(runtime, 1, "y", 1)
        reduce_in_set(runtime, 3, "x")
        reduce_in_set(runtime, 1, "z")
        runtime.wait(first)
    elif rank == 1:
        threading.Timer(0.8, event.set).start()
        reduce_in_set(runtime, 1, "z")
        reduce_in_set(runtime, 1, "y")
    elif rank == 2:
        handles = [submit_to_set(runtime, number, name, 1)[0] for number, name in ((1, "y"), (1, "z"), (3, "x"))]
        for handle in handles:
            runtime.wait(handle)
    else:
        assert event.wait(30.0)
        reduce_in_set(runtime, 3, "x")


@on_ranks(4, process_sets=[[1, 3]])
def test_a_circle_of_waits_within_a_set_fails_soon(rank, runtime):
    if rank in (1, 3):
        error = caught(lambda: reduce_in_set(runtime, 1, f"of{rank}"))
        assert isinstance(error, StallError) and "can never complete" in str(error), error
        other = 4 - rank
        submitted = f"allreduce 'of{rank}' of process set 1 was submitted by rank {rank} and not by rank {other}"
        assert submitted in str(error)
    reduce_in_set(runtime, 0, "after")


def test_a_circle_of_waits_over_two_sets_is_reported_and_ended_by_the_stall_limit(capfd):
    failed = threading.Barrier(3, timeout=60.0)

    def wait_in_a_circle(rank, runtime):
        number, name = (1, "x") if rank == 1 else (0, "y")
        error = caught(lambda: reduce_in_set(runtime, number, name))
        failed.wait()
        if rank > 0:
            reduce_in_set(runtime, 1, "after")
        return error

    limits = {"stall_check_time_seconds": "0.3", "stall_shutdown_time_seconds": "0.8"}
    errors = run_ranks(3, wait_in_a_circle, [[1, 2]], **limits)
    assert all(isinstance(error, StallError) for error in errors), errors
    assert "'y' was submitted by ranks 0, 2 and not by rank 1" in str(errors[0])
    assert "'x' of process set 1 was submitted by rank 1 and not by rank 2" in str(errors[1])
    reported = capfd.readouterr().err
    assert "'x' of process set 1 was submitted by rank 1 and not by rank 2" in reported
    assert "[horocache rank 2]" in reported


@on_ranks(4, process_sets=SETS)
def test_a_rank_that_shuts_down_ends_its_sets_and_no_other_set(rank, runtime, event):
    for number in set(sets_of(rank)) & {2, 3}:
        finish(runtime, submit_to_set(runtime, number, "first", 1)[0])
    if rank == 3:
        runtime.stop()
        event.set()
        return
    assert event.wait(60.0)
    for number in sets_of(rank):
        error = caught(lambda number=number: finish(runtime, submit_to_set(runtime, number, "second", 1)[0]))
        if 3 in members(number):
            assert isinstance(error, ShutDownError) and "rank 3" in str(error), (number, error)
        else:
            assert error is None, (number, error)


@on_ranks(3, process_sets=[[1, 2]])
def test_an_abort_ends_also_sets_without_the_aborting_rank(rank, runtime, barrier):
    if rank == 0:
        barrier.wait()
        runtime.abort("no more disk")
        return
    handle, _ = submit_to_set(runtime, 1, "a" if rank == 1 else "b", 1)  # neither can complete
    barrier.wait()
    error = caught(lambda: runtime.wait(handle))
    assert isinstance(error, AbortedError) and "rank 0 aborted: no more disk" in str(error), error


@on_ranks(3, process_sets=[[1], [0, 2]])
def test_a_set_may_have_one_rank_and_a_set_may_stay_unused(rank, runtime):
    if rank == 1:
        handle, array = submit_to_set(runtime, 1, "alone", 7)
        finish(runtime, handle)
        np.testing.assert_array_equal(array, 7)
    blocking(runtime, BARRIER, [])
