"""Groups are atomic: a mistake in one member fails the group and leaves no member in flight."""

from __future__ import annotations

import numpy as np
import pytest

from horocache.errors import DuplicateNameError, InvalidArgumentError, MismatchError, UnsupportedError

from .conftest import on_ranks
from .operations import ALLREDUCE, MAX, caught, finish, submit, submit_sum

NAMES = ["a", "b", "c"]
in_any_member = pytest.mark.parametrize("member", range(len(NAMES)))
new_and_cached = pytest.mark.parametrize("cached", [False, True], ids=["new", "cached"])


def ones():
    return [np.ones(4, np.float32) for _ in NAMES]


def submit_group(runtime, arrays, names=NAMES, **options):
    return submit(runtime, ALLREDUCE, arrays, arrays, name="group", names=list(names), group=True, **options)


def reduce_group(runtime, arrays, names=NAMES, **options):
    finish(runtime, submit_group(runtime, arrays, names, wait_follows=True, **options))


def submit_single(runtime, name):
    array = np.ones(4, np.float32)
    return submit_sum(runtime, array, name=name), array


def check_single_tensors(runtime, names, ranks):
    for name in names:
        handle, array = submit_single(runtime, name)
        finish(runtime, handle)
        np.testing.assert_array_equal(array, ranks)


def check_group(runtime, ranks):
    for _ in range(2):  # negotiated, then from the cache
        arrays = ones()
        reduce_group(runtime, arrays)
        for array in arrays:
            np.testing.assert_array_equal(array, ranks)


@pytest.mark.parametrize(
    ("starts", "named"), [((0, 3, 8), "'a' and 'b'"), ((8, 3, 0), "'b' and 'c'"), ((4, 8, 4), "'a' and 'c'")]
)
@on_ranks(2)
def test_results_that_overlap_raise_and_free_the_names(rank, runtime, starts, named):
    memory = np.ones(12, np.float32)
    error = caught(lambda: submit_group(runtime, [memory[start : start + 4] for start in starts]))
    assert isinstance(error, InvalidArgumentError), error
    assert f"tensors {named} of one group share memory" in str(error)
    reduce_group(runtime, [memory[start : start + 4] for start in (8, 0, 4)])
    np.testing.assert_array_equal(memory, 2)


@pytest.mark.parametrize("pending", NAMES)
@new_and_cached
@on_ranks(3)
def test_a_group_with_a_name_in_flight_raises_and_frees_the_other_names(rank, runtime, event, pending, cached):
    if cached:
        check_group(runtime, 3)
        check_single_tensors(runtime, NAMES, 3)
    if rank != 0:
        assert event.wait(30.0)  # so that the first operation cannot complete before rank 0 submits the group
    handle, first = submit_single(runtime, pending)
    if rank == 0:
        for _ in range(2):
            error = caught(lambda: submit_group(runtime, ones()))
            assert isinstance(error, DuplicateNameError) and f"'{pending}'" in str(error), error
        event.set()
    check_single_tensors(runtime, [name for name in NAMES if name != pending], 3)  # no member is in flight
    finish(runtime, handle)
    np.testing.assert_array_equal(first, 3)
    check_group(runtime, 3)


@in_any_member
@new_and_cached
@on_ranks(3)
def test_a_mismatch_in_any_member_fails_the_group(rank, runtime, member, cached):
    if cached:
        check_group(runtime, 3)
    arrays = ones()
    if rank == 2:
        arrays[member] = np.ones(5, np.float32)
    error = caught(lambda: reduce_group(runtime, arrays))
    assert isinstance(error, MismatchError), error
    for word in (f"tensor '{NAMES[member]}'", "[4]", "[5]", "rank 2"):
        assert word in str(error), error
    assert all((array == 1).all() for array in arrays), "a member has been reduced"
    check_group(runtime, 3)


@in_any_member
@on_ranks(2)
def test_a_group_with_an_invalid_member_raises_and_submits_no_member(rank, runtime, member):
    arrays = ones()
    arrays[member] = np.ones((4, 4), np.float32).T[1:]  # not contiguous
    error = caught(lambda: reduce_group(runtime, arrays))
    assert isinstance(error, InvalidArgumentError), error
    check_group(runtime, 2)


@in_any_member
@on_ranks(2)
def test_a_member_that_no_backend_can_reduce_fails_the_group_on_all_ranks(rank, runtime, member):
    arrays = ones()
    arrays[member] = np.ones(4, np.complex64)
    error = caught(lambda: reduce_group(runtime, arrays, reduce_op=MAX))
    assert isinstance(error, UnsupportedError) and "complex64" in str(error), error
    assert all((array == 1).all() for array in arrays)
    check_group(runtime, 2)


@on_ranks(2)
def test_one_name_for_two_members_raises(rank, runtime):
    error = caught(lambda: reduce_group(runtime, ones(), ["a", "b", "a"]))
    assert isinstance(error, InvalidArgumentError), error
    check_group(runtime, 2)


@on_ranks(3)
def test_a_tensor_that_is_grouped_on_some_ranks_only_fails_on_all_ranks(rank, runtime):
    if rank == 1:
        handles = [submit_single(runtime, name)[0] for name in NAMES]
        errors = [caught(lambda handle=handle: finish(runtime, handle)) for handle in handles]
    else:
        errors = [caught(lambda: reduce_group(runtime, ones()))]
    for error in errors:
        assert isinstance(error, MismatchError), error
        assert "'group'" in str(error) and "rank 1" in str(error), error
    check_group(runtime, 3)
