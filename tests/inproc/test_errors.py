"""Errors in a running job, as every rank sees them."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

from horocache import _core
from horocache._core import with_failed_input
from horocache.errors import (
    AbortedError,
    DuplicateNameError,
    InputFailedError,
    InternalError,
    InvalidArgumentError,
    NonFiniteError,
    ShutDownError,
    StallError,
)

from .conftest import on_ranks
from .operations import ALLREDUCE, allreduce_ones, caught, finish, submit, submit_sum


@pytest.mark.parametrize("agreement", ["bits", "leaders", "coordinator", "tree"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
@on_ranks(1, 2, 3, 4, check_finite="1")
def test_check_finite_fails_only_reductions_of_values_that_are_not_finite(rank, runtime, size, dtype, agreement):
    last = size - 1

    def reduce(*bad):
        array = np.ones(100, dtype)
        array[list(bad) if rank == last else []] = np.nan
        return caught(lambda: runtime.wait(submit_sum(runtime, array, name="g")))

    assert [reduce() for _ in range(3)] == [None] * 3  # the response is cached now
    first = reduce(17, 40, 99)
    assert [reduce() for _ in range(3)] == [None] * 3
    second = reduce(0)
    assert type(first) is NonFiniteError and type(second) is NonFiniteError
    text = f"allreduce 'g': rank {last} submitted 3 NaN or infinite of 100 values, the first at element 17"
    assert text in str(first)
    assert f"rank {last} submitted 1 NaN or infinite of 100 values, the first at element 0" in str(second)


@on_ranks(3, check_finite="1")
def test_check_finite_names_the_group_member_and_every_rank_with_bad_values(rank, runtime):
    arrays = [np.ones(4, np.float32), np.full(3, np.inf if rank > 0 else 1.0, np.float32)]
    group = {"name": "g", "names": ["a", "b"], "group": True}
    text = str(caught(lambda: runtime.wait(submit(runtime, ALLREDUCE, arrays, arrays, **group))))
    for bad in (1, 2):
        assert f"rank {bad} submitted 3 NaN or infinite of 3 values in tensor 'b', the first at element 0" in text


@pytest.mark.parametrize("agreement", ["bits", "leaders", "coordinator", "tree"])
@on_ranks(1, 2, 3, 4)
def test_a_failed_input_is_an_error_of_all_ranks_and_of_that_operation_only(rank, runtime, size, agreement):
    last = size - 1

    def reduce(reason=None, shape=100):
        start = lambda: submit_sum(runtime, np.ones(shape, np.float32), name="g")  # noqa: E731
        handle = start() if reason is None or rank != last else with_failed_input(reason, start)
        return caught(lambda: runtime.wait(handle))

    assert [reduce() for _ in range(3)] == [None] * 3  # the response is cached now
    first = reduce("no data, because it broke")
    assert [reduce() for _ in range(3)] == [None] * 3
    second = reduce("nothing at all", shape=99 if rank == last else 100)  # the shape follows from the failure
    assert type(first) is InputFailedError and type(second) is InputFailedError
    assert f"allreduce 'g': rank {last} submitted no data, because it broke." in str(first)
    assert f"rank {last} submitted nothing at all" in str(second)
    assert reduce() is None


@on_ranks(2)
def test_a_failed_input_of_a_group_that_repeats_is_forgotten_afterwards(rank, runtime):
    arrays = [np.ones(4, np.float32), np.ones(3, np.float32)]
    start = lambda: submit(runtime, ALLREDUCE, arrays, arrays, name="g", names=["a", "b"], group=True)  # noqa: E731
    for attempt in range(6):
        fails = attempt % 3 == 1
        handle = with_failed_input("no luck", start) if fails and rank == 0 else start()
        error = caught(lambda handle=handle: runtime.wait(handle))
        assert type(error) is (InputFailedError if fails else type(None))


@on_ranks(3)
def test_a_name_in_flight_raises_and_the_first_operation_completes(rank, runtime, event):
    array = np.ones(3, np.float32)
    if rank != 0:
        assert event.wait(30.0)  # so that the first operation cannot complete before rank 0 submits the name again
    first = submit_sum(runtime, array, name="twice")
    if rank == 0:
        error = caught(lambda: submit_sum(runtime, array, name="twice"))
        event.set()
        assert isinstance(error, DuplicateNameError), error
    finish(runtime, first)
    np.testing.assert_array_equal(array, 3)


@on_ranks(2)
def test_ranks_that_wait_for_different_tensors_fail_at_once(rank, runtime):
    error = caught(lambda: allreduce_ones(runtime, "a" if rank == 0 else "b"))
    assert isinstance(error, StallError), error
    assert "'a'" in str(error) or "'b'" in str(error)


@on_ranks(2, stall_check_time_seconds="0.2", stall_shutdown_time_seconds="0.6")
def test_a_tensor_that_one_rank_lacks_fails_after_the_limit(rank, runtime, event):
    if rank == 0:
        error = caught(lambda: allreduce_ones(runtime, "lonely"))
        event.set()
        assert isinstance(error, StallError), error
        assert "lonely" in str(error)
        assert "rank 1" in str(error)
    else:
        assert event.wait(30.0)  # rank 1 does not submit, so the limit decides
    allreduce_ones(runtime, "done")


@on_ranks(3)
def test_a_rank_that_leaves_fails_pending_operations_of_the_others(rank, runtime):
    if rank == 0:
        return
    error = caught(lambda: allreduce_ones(runtime, "late"))
    assert isinstance(error, ShutDownError), error
    assert "late" in str(error)


@on_ranks(3)
def test_an_abort_reaches_every_rank_with_its_reason(rank, runtime):
    if rank == 1:
        runtime.abort("the loss is not a number")
        return
    error = caught(lambda: allreduce_ones(runtime, "x"))
    assert isinstance(error, AbortedError | ShutDownError), error
    if isinstance(error, AbortedError):
        assert "the loss is not a number" in str(error)


@on_ranks(2)
def test_invalid_arguments_raise_before_anything_is_sent(rank, runtime):
    array = np.ones((4, 4), np.float32)
    read_only = np.ones(3, np.float32)
    read_only.flags.writeable = False
    for inputs, outputs in [
        ([array.T], [array.T]),
        ([read_only], [read_only]),
        ([object()], None),
        ([array], [array[:2]]),
    ]:
        error = caught(lambda i=inputs, o=outputs: submit(runtime, ALLREDUCE, i, o, name="bad"))
        assert isinstance(error, InvalidArgumentError), (inputs, error)
    allreduce_ones(runtime, "bad")  # the name is free again
    error = caught(lambda: submit_sum(runtime, array, name="n" * 5000))
    assert isinstance(error, InvalidArgumentError)


@on_ranks(2)
def test_names_may_be_any_bytes(rank, runtime):
    for name in (b"\xff\xfe", b"quote'\"\n", b"", "gr\u00f6\u00dfe", "\udcff"):
        allreduce_ones(runtime, name)


def test_an_interrupted_wait_keeps_the_handle_of_a_completed_operation():
    first, second = _core.start_in_process(2, {})
    array = np.ones(3, np.float32)
    handle = submit_sum(first, array, name="x")

    def interrupt(*_):
        allreduce_ones(second, "x")
        threads = [threading.Thread(target=allreduce_ones, args=(runtime, "after")) for runtime in (first, second)]
        for thread in threads:  # these are complete on both ranks, so the earlier operation is, too
            thread.start()
        for thread in threads:
            thread.join(60.0)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            first.wait(handle, 60.0)
        assert first.poll(handle)
        first.wait(handle)
        np.testing.assert_array_equal(array, [2, 2, 2])
    finally:
        signal.signal(signal.SIGALRM, before)
        first.stop()
        second.stop()


@on_ranks(3, fault="data:1:3=drop")
def test_a_rank_that_drops_an_operation_halfway_ends_it_on_all_ranks(rank, runtime):
    error = caught(lambda: [allreduce_ones(runtime, "large", (4_000_000,)) for _ in range(10)])
    assert isinstance(error, InternalError if rank == 1 else AbortedError), error
    assert "injected at data" in str(error) if rank == 1 else "rank 1 gave up allreduce half way" in str(error)
    assert isinstance(caught(lambda: allreduce_ones(runtime, "after")), AbortedError)
