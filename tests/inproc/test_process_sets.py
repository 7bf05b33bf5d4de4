"""Several process sets in one job: crossed, from several threads, and with failures in one of them."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from horocache.errors import AbortedError, InvalidArgumentError, MismatchError, ShutDownError, StallError

from .conftest import run_ranks, submit
from .test_errors import caught
from .test_operations import ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, REDUCESCATTER, blocking

SETS = [[0, 1, 2], [1, 2, 3], [0, 2, 3]]  # numbers 1, 2 and 3; every two share two ranks


def members(number, size=4):
    return list(range(size)) if number == 0 else SETS[number - 1]


def mine(rank):
    return [number for number in range(4) if rank in members(number)]


def submit_to_set(runtime, number, name, value, count=5):
    array = np.full(count, value, np.float64)
    return submit(runtime, ALLREDUCE, [array], [array], name=name, process_set=number), array


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


def test_every_operation_runs_among_the_members_alone():
    def body(rank, runtime):
        for _ in range(2):  # the second time from the cache
            for number in mine(rank):
                ranks = members(number)
                own = ranks.index(rank)
                options = {"process_set": number}
                array = np.full(3, rank + 1.0)
                blocking(runtime, ALLREDUCE, [array], [array], name="sum", **options)
                np.testing.assert_array_equal(array, sum(ranks) + len(ranks))
                blocking(runtime, ALLREDUCE, [array], [array], name="mean", reduce_op=0, **options)
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
                    np.asarray(part), [len(ranks) * (2 * own + i) + sum(ranks) for i in range(2)]
                )
                (swapped,) = blocking(runtime, ALLTOALL, [np.full(len(ranks), rank)], name="swap", **options)
                np.testing.assert_array_equal(np.asarray(swapped), ranks)
                blocking(runtime, BARRIER, [], **options)

    run_ranks(4, body, SETS)


def test_crossed_sets_in_opposite_orders_without_waiting():
    def body(rank, runtime):
        for step in range(20):
            numbers = mine(rank) if rank % 2 else mine(rank)[::-1]
            started = [(number, *submit_to_set(runtime, number, "x", rank + step)) for number in numbers]
            for number, handle, array in random.Random(step * 7 + rank).sample(started, len(started)):
                runtime.wait(handle, 60.0)
                np.testing.assert_array_equal(array, sum(members(number)) + step * len(members(number)))

    run_ranks(4, body, SETS)


def test_crossed_sets_in_opposite_orders_from_threads_that_wait():
    def body(rank, runtime):
        def use(number):
            for step in range(30):
                handle, array = submit_to_set(runtime, number, "x", rank + step)
                runtime.wait(handle, 60.0)
                np.testing.assert_array_equal(array, sum(members(number)) + step * len(members(number)))

        numbers = mine(rank) if rank % 2 else mine(rank)[::-1]
        in_threads([lambda number=number: use(number) for number in numbers])

    run_ranks(4, body, SETS)


@pytest.mark.parametrize("agreement", ["bits", "tree"])
@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_over_three_overlapping_sets(seed, agreement):
    plan = random.Random(seed)
    steps = [
        [(plan.randrange(4), f"t{plan.randrange(6)}.{i}", plan.choice([1, 100, 9000])) for i in range(12)]
        for _ in range(6)
    ]

    def body(rank, runtime):
        own = random.Random(1000 * seed + rank)
        for step, operations in enumerate(steps):
            todo = [op for op in operations if rank in members(op[0])]
            own.shuffle(todo)
            cut = own.randrange(len(todo) + 1)

            def part(chosen, order, step=step):
                started = []
                for number, name, count in chosen:
                    started.append((number, *submit_to_set(runtime, number, name, rank + step, count)))
                order.shuffle(started)
                for number, handle, array in started:
                    runtime.wait(handle, 60.0)
                    expected = sum(members(number)) + step * len(members(number))
                    np.testing.assert_array_equal(array, expected, f"seed {seed} step {step} rank {rank}")

            orders = [random.Random(own.random()) for _ in range(2)]
            in_threads([lambda: part(todo[:cut], orders[0]), lambda: part(todo[cut:], orders[1])])  # noqa: B023

    run_ranks(4, body, SETS, cache_capacity="16" if seed % 2 else "1024", agreement=agreement)


def test_eight_ranks_in_a_ring_of_pairs_and_two_halves():
    sets = [[r, (r + 1) % 8] for r in range(7)] + [[0, 7], [0, 1, 2, 3], [4, 5, 6, 7]]

    def body(rank, runtime):
        numbers = [number for number, ranks in enumerate(sets, 1) if rank in ranks]
        own = random.Random(rank)
        for step in range(10):
            started = [
                (number, *submit_to_set(runtime, number, "x", rank + step))
                for number in own.sample(numbers, len(numbers))
            ]
            for number, handle, array in started:
                runtime.wait(handle, 60.0)
                ranks = sets[number - 1]
                np.testing.assert_array_equal(array, sum(ranks) + step * len(ranks))

    run_ranks(8, body, [sorted(ranks) for ranks in sets])


def test_names_are_of_a_set():
    def body(rank, runtime):
        started = [(number, *submit_to_set(runtime, number, "same", 1)) for number in mine(rank)]
        for number, handle, array in started:
            runtime.wait(handle, 60.0)
            np.testing.assert_array_equal(array, len(members(number)))
        # Automatic names are counted for each set: ranks use different numbers of sets, in different orders.
        numbers = mine(rank)[:: -1 if rank == 2 else 1]
        started = [(number, *submit_to_set(runtime, number, None, rank)) for number in numbers for _ in range(3)]
        for number, handle, array in started:
            runtime.wait(handle, 60.0)
            np.testing.assert_array_equal(array, sum(members(number)))
        return runtime.metrics()

    metrics = run_ranks(4, body, SETS)
    assert [m["op_count.allreduce"] for m in metrics] == [4 * len(mine(r)) for r in range(4)]
    assert all(m["cache_misses"] == 4 * len(mine(r)) for r, m in enumerate(metrics))


def test_counters_are_sums_over_all_sets():
    def body(rank, runtime):
        for _ in range(5):
            for number in mine(rank):
                runtime.wait(submit_to_set(runtime, number, "x", rank)[0], 60.0)
        return runtime.metrics()

    for rank, metrics in enumerate(run_ranks(4, body, SETS)):
        sets = len(mine(rank))
        assert metrics["cache_hits"] == 4 * sets
        assert metrics["cache_misses"] == sets
        assert metrics["operations"] == 5 * sets
        assert metrics["payload_bytes"] == 5 * sets * 40


def test_who_is_not_in_a_set_is_told_so_and_so_is_who_names_none():
    def body(rank, runtime):
        for number in {1, 2, 3} - set(mine(rank)):
            error = caught(lambda number=number: submit_to_set(runtime, number, "x", 1))
            assert isinstance(error, InvalidArgumentError), error
            ranks = ", ".join(map(str, members(number)))
            assert f"rank {rank} is not in process set {number} (ranks {ranks})" in str(error)
        for number in (4, -1):
            error = caught(lambda number=number: submit_to_set(runtime, number, "x", 1))
            assert isinstance(error, InvalidArgumentError) and f"no process set {number}" in str(error), error
        blocking(runtime, BARRIER, [])

    run_ranks(4, body, SETS)


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
def test_sets_that_cannot_be_are_refused(sets, words):
    error = caught(lambda: run_ranks(3, lambda rank, runtime: None, sets))
    assert isinstance(error, InvalidArgumentError) and words in str(error), error


def test_a_mismatch_in_one_set_names_ranks_of_the_job_and_leaves_the_others_alone():
    def body(rank, runtime):
        running = [submit_to_set(runtime, number, "good", 1) for number in mine(rank)]
        if 2 in mine(rank):
            error = caught(lambda: runtime.wait(submit_to_set(runtime, 2, "bad", 1, 4 if rank == 3 else 5)[0], 60.0))
            assert isinstance(error, MismatchError), error
            assert "allreduce 'bad' of process set 2" in str(error)
            assert "rank 3" in str(error) and "[4]" in str(error) and "[5]" in str(error), error
            array = np.ones(2)
            wrong = caught(
                lambda: blocking(
                    runtime, BROADCAST, [array], [array], name="root", root=0 if rank == 3 else 2, process_set=2
                )
            )
            assert isinstance(wrong, MismatchError) and "root 1" in str(wrong) and "root 3" in str(wrong), wrong
            # The data plane detects this one; it knows only the ranks' numbers within the set.
            rows = [1, 1, 2] if rank == 3 else [2, 1, 1]
            uneven = caught(
                lambda: blocking(runtime, REDUCESCATTER, [np.ones(4)], name="uneven", splits=rows, process_set=2)
            )
            assert isinstance(uneven, MismatchError) and "rank 3 gives it" in str(uneven), uneven
        for handle, _ in running:
            runtime.wait(handle, 60.0)
        for number in mine(rank):
            runtime.wait(submit_to_set(runtime, number, "after", 1)[0], 60.0)

    run_ranks(4, body, SETS)


def test_a_wait_in_one_set_makes_nobody_believe_that_another_is_stuck():
    late = threading.Event()

    def body(rank, runtime):
        # Rank 0 waits in set 3, and goes on when rank 3 comes. If rank 0 waited in set 1, that set would be stuck.
        if rank == 0:
            first, _ = submit_to_set(runtime, 1, "y", 1)
            runtime.wait(submit_to_set(runtime, 3, "x", 1)[0])
            runtime.wait(submit_to_set(runtime, 1, "z", 1)[0])
            runtime.wait(first)
        elif rank == 1:
            threading.Timer(0.8, late.set).start()
            runtime.wait(submit_to_set(runtime, 1, "z", 1)[0])
            runtime.wait(submit_to_set(runtime, 1, "y", 1)[0])
        elif rank == 2:
            handles = [submit_to_set(runtime, number, name, 1)[0] for number, name in ((1, "y"), (1, "z"), (3, "x"))]
            for handle in handles:
                runtime.wait(handle)
        else:
            assert late.wait(30.0)
            runtime.wait(submit_to_set(runtime, 3, "x", 1)[0])

    run_ranks(4, body, SETS)


def test_a_circle_of_waits_within_a_set_is_found_soon():
    def body(rank, runtime):
        if rank in (1, 3):
            error = caught(lambda: runtime.wait(submit_to_set(runtime, 1, f"of{rank}", 1)[0]))
            assert isinstance(error, StallError) and "can never complete" in str(error), error
            other = 4 - rank
            assert f"allreduce 'of{rank}' of process set 1 was submitted by rank {rank} and not by rank {other}" in str(
                error
            )
        runtime.wait(submit_to_set(runtime, 0, "after", 1)[0])

    run_ranks(4, body, [[1, 3]])


def test_a_circle_of_waits_over_two_sets_is_reported_and_ended_by_the_stall_limit(capfd):
    failed = threading.Barrier(3, timeout=60.0)

    def body(rank, runtime):
        number, name = (1, "x") if rank == 1 else (0, "y")
        error = caught(lambda: runtime.wait(submit_to_set(runtime, number, name, 1)[0]))
        failed.wait()
        if rank > 0:
            runtime.wait(submit_to_set(runtime, 1, "after", 1)[0])
        return error

    errors = run_ranks(3, body, [[1, 2]], stall_check_time_seconds="0.3", stall_shutdown_time_seconds="0.8")
    assert all(isinstance(error, StallError) for error in errors), errors
    assert "'y' was submitted by ranks 0, 2 and not by rank 1" in str(errors[0])
    assert "'x' of process set 1 was submitted by rank 1 and not by rank 2" in str(errors[1])
    reported = capfd.readouterr().err
    assert "'x' of process set 1 was submitted by rank 1 and not by rank 2" in reported
    assert "[horocache rank 2]" in reported


def test_a_rank_that_shuts_down_ends_its_sets_and_no_others():
    left = threading.Event()

    def body(rank, runtime):
        if rank == 3:
            for number in (2, 3):
                runtime.wait(submit_to_set(runtime, number, "first", 1)[0], 60.0)
            runtime.stop()
            left.set()
            return
        for number in set(mine(rank)) & {2, 3}:
            runtime.wait(submit_to_set(runtime, number, "first", 1)[0], 60.0)
        assert left.wait(60.0)
        for number in mine(rank):
            error = caught(lambda number=number: runtime.wait(submit_to_set(runtime, number, "second", 1)[0], 60.0))
            if 3 in members(number):
                assert isinstance(error, ShutDownError) and "rank 3" in str(error), (number, error)
            else:
                assert error is None, (number, error)

    run_ranks(4, body, SETS)


def test_who_aborts_ends_also_the_sets_that_it_is_not_in():
    started = threading.Barrier(3, timeout=60.0)

    def body(rank, runtime):
        if rank == 0:
            started.wait()
            runtime.abort("no more disk")
            return
        handle, _ = submit_to_set(runtime, 1, "a" if rank == 1 else "b", 1)  # neither can complete
        started.wait()
        error = caught(lambda: runtime.wait(handle))
        assert isinstance(error, AbortedError) and "rank 0 aborted: no more disk" in str(error), error

    run_ranks(3, body, [[1, 2]])


def test_a_set_may_have_one_rank_and_another_may_never_be_used():
    def body(rank, runtime):
        if rank == 1:
            handle, array = submit_to_set(runtime, 1, "alone", 7)
            runtime.wait(handle, 60.0)
            np.testing.assert_array_equal(array, 7)
        blocking(runtime, BARRIER, [])

    run_ranks(3, body, [[1], [0, 2]])
