"""A group is atomic: a mistake in one member fails the group and leaves no member in flight."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from horocache.errors import DuplicateNameError, InvalidArgumentError, MismatchError, UnsupportedError

from .conftest import run_ranks, submit
from .test_errors import caught
from .test_operations import ALLREDUCE, MAX

NAMES = ["a", "b", "c"]


def ones():
    return [np.ones(4, np.float32) for _ in NAMES]


def submit_group(runtime, arrays, names=NAMES, **options):
    return submit(runtime, ALLREDUCE, arrays, arrays, name="group", names=list(names), group=True, **options)


def group(runtime, arrays, names=NAMES, **options):
    runtime.wait(submit_group(runtime, arrays, names, wait_follows=True, **options), 60.0)


def alone(runtime, name):
    array = np.ones(4, np.float32)
    return submit(runtime, ALLREDUCE, [array], [array], name=name), array


def check_each_alone(runtime, names, ranks):
    for name in names:
        handle, array = alone(runtime, name)
        runtime.wait(handle, 60.0)
        np.testing.assert_array_equal(array, ranks)


def check_whole_group(runtime, ranks):
    for _ in range(2):  # negotiated, then from the cache
        arrays = ones()
        group(runtime, arrays)
        for array in arrays:
            np.testing.assert_array_equal(array, ranks)


@pytest.mark.parametrize(
    ("starts", "named"), [((0, 3, 8), "'a' and 'b'"), ((8, 3, 0), "'b' and 'c'"), ((4, 8, 4), "'a' and 'c'")]
)
def test_results_that_overlap_are_refused_and_the_names_are_free(starts, named):
    def body(rank, runtime):
        memory = np.ones(12, np.float32)
        error = caught(lambda: submit_group(runtime, [memory[start : start + 4] for start in starts]))
        assert isinstance(error, InvalidArgumentError), error
        assert f"tensors {named} of one group share memory" in str(error)
        group(runtime, [memory[start : start + 4] for start in (8, 0, 4)])
        np.testing.assert_array_equal(memory, 2)

    run_ranks(2, body)


@pytest.mark.parametrize("pending", NAMES)
@pytest.mark.parametrize("cached", [False, True], ids=["new", "cached"])
def test_a_member_that_is_in_flight_refuses_the_group_and_frees_the_others(pending, cached):
    refused = threading.Event()

    def body(rank, runtime):
        if cached:
            check_whole_group(runtime, 3)
            check_each_alone(runtime, NAMES, 3)
        if rank != 0:
            assert refused.wait(30.0)  # so that it cannot complete before rank 0 tries the group
        handle, first = alone(runtime, pending)
        if rank == 0:
            for _ in range(2):
                error = caught(lambda: submit_group(runtime, ones()))
                assert isinstance(error, DuplicateNameError) and f"'{pending}'" in str(error), error
            refused.set()
        check_each_alone(runtime, [name for name in NAMES if name != pending], 3)  # nothing of the group is in flight
        runtime.wait(handle, 60.0)
        np.testing.assert_array_equal(first, 3)
        check_whole_group(runtime, 3)

    run_ranks(3, body)


@pytest.mark.parametrize("member", range(len(NAMES)))
@pytest.mark.parametrize("cached", [False, True], ids=["new", "cached"])
def test_the_error_of_any_member_is_that_of_the_group(member, cached):
    def body(rank, runtime):
        if cached:
            check_whole_group(runtime, 3)
        arrays = ones()
        if rank == 2:
            arrays[member] = np.ones(5, np.float32)
        error = caught(lambda: group(runtime, arrays))
        assert isinstance(error, MismatchError), error
        for word in (f"tensor '{NAMES[member]}'", "[4]", "[5]", "rank 2"):
            assert word in str(error), error
        assert all((array == 1).all() for array in arrays), "no member has been reduced"
        check_whole_group(runtime, 3)

    run_ranks(3, body)


@pytest.mark.parametrize("member", range(len(NAMES)))
def test_a_member_that_cannot_be_submitted_submits_none(member):
    def body(rank, runtime):
        arrays = ones()
        arrays[member] = np.ones((4, 4), np.float32).T[1:]  # not contiguous
        error = caught(lambda: group(runtime, arrays))
        assert isinstance(error, InvalidArgumentError), error
        check_whole_group(runtime, 2)

    run_ranks(2, body)


@pytest.mark.parametrize("member", range(len(NAMES)))
def test_a_member_that_no_backend_can_reduce_fails_the_group_on_all_ranks(member):
    def body(rank, runtime):
        arrays = ones()
        arrays[member] = np.ones(4, np.complex64)
        error = caught(lambda: group(runtime, arrays, reduce_op=MAX))
        assert isinstance(error, UnsupportedError) and "complex64" in str(error), error
        assert all((array == 1).all() for array in arrays)
        check_whole_group(runtime, 2)

    run_ranks(2, body)


def test_one_name_for_two_members_is_refused():
    def body(rank, runtime):
        error = caught(lambda: group(runtime, ones(), ["a", "b", "a"]))
        assert isinstance(error, InvalidArgumentError), error
        check_whole_group(runtime, 2)

    run_ranks(2, body)


def test_a_tensor_that_is_in_a_group_on_one_rank_alone_fails_on_all_with_both():
    def body(rank, runtime):
        if rank == 1:
            handles = [alone(runtime, name)[0] for name in NAMES]
            errors = [caught(lambda handle=handle: runtime.wait(handle, 60.0)) for handle in handles]
        else:
            errors = [caught(lambda: group(runtime, ones()))]
        for error in errors:
            assert isinstance(error, MismatchError), error
            assert "'group'" in str(error) and "rank 1" in str(error), error
        check_whole_group(runtime, 3)

    run_ranks(3, body)
