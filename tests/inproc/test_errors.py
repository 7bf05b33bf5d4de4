"""Errors in a running job, as every rank sees them."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

from horocache import _core
from horocache.errors import (
    AbortedError,
    DuplicateNameError,
    InternalError,
    InvalidArgumentError,
    NonFiniteError,
    ShutDownError,
    StallError,
)

from .conftest import run_ranks, submit

ALLREDUCE, BROADCAST, JOIN = 0, 2, 9


def caught(action):
    try:
        action()
    except Exception as error:
        return error
    return None


def allreduce(runtime, name, shape=(3,), dtype=np.float32, **options):
    array = np.ones(shape, dtype)
    return runtime.wait(submit(runtime, ALLREDUCE, [array], [array], name=name, wait_follows=True, **options))


@pytest.mark.parametrize("agreement", ["bits", "leaders", "coordinator", "tree"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_values_that_are_not_finite_fail_where_that_was_asked_for(size, dtype, agreement):
    last = size - 1

    def body(rank, runtime):
        def reduce(*bad):
            array = np.ones(100, dtype)
            array[list(bad) if rank == last else []] = np.nan
            return caught(lambda: runtime.wait(submit(runtime, ALLREDUCE, [array], [array], name="g")))

        assert [reduce() for _ in range(3)] == [None] * 3  # the response is cached now
        first = reduce(17, 40, 99)
        assert [reduce() for _ in range(3)] == [None] * 3
        return first, reduce(0)

    for first, second in run_ranks(size, body, check_finite="1", agreement=agreement):
        assert type(first) is NonFiniteError and type(second) is NonFiniteError
        said = f"allreduce 'g': rank {last} submitted 3 NaN or infinite of 100 values, the first at element 17"
        assert said in str(first)
        assert f"rank {last} submitted 1 NaN or infinite of 100 values, the first at element 0" in str(second)


def test_the_member_of_a_group_and_every_rank_with_bad_values_are_named():
    def body(rank, runtime):
        arrays = [np.ones(4, np.float32), np.full(3, np.inf if rank > 0 else 1.0, np.float32)]
        group = {"name": "g", "names": ["a", "b"], "group": True}
        return str(caught(lambda: runtime.wait(submit(runtime, ALLREDUCE, arrays, arrays, **group))))

    for text in run_ranks(3, body, check_finite="1"):
        for rank in (1, 2):
            assert f"rank {rank} submitted 3 NaN or infinite of 3 values in tensor 'b', the first at element 0" in text


def test_a_name_in_flight_is_refused_and_the_first_lives():
    refused = threading.Event()

    def body(rank, runtime):
        array = np.ones(3, np.float32)
        if rank != 0:
            assert refused.wait(30.0)  # so it cannot complete before rank 0 tries again
        first = submit(runtime, ALLREDUCE, [array], [array], name="twice")
        if rank == 0:
            error = caught(lambda: submit(runtime, ALLREDUCE, [array], [array], name="twice"))
            refused.set()
            assert isinstance(error, DuplicateNameError), error
        runtime.wait(first, 60.0)
        np.testing.assert_array_equal(array, 3)

    run_ranks(3, body)


def test_a_tensor_that_one_rank_lacks_fails_at_once_when_nothing_can_help():
    def body(rank, runtime):
        error = caught(lambda: allreduce(runtime, "a" if rank == 0 else "b"))
        assert isinstance(error, StallError), error
        assert "'a'" in str(error) or "'b'" in str(error)

    run_ranks(2, body)


def test_a_tensor_that_one_rank_lacks_fails_after_the_limit():
    failed = threading.Event()

    def body(rank, runtime):
        if rank == 0:
            error = caught(lambda: allreduce(runtime, "lonely"))
            failed.set()
            assert isinstance(error, StallError), error
            assert "lonely" in str(error)
            assert "rank 1" in str(error)
        else:
            assert failed.wait(30.0)  # rank 1 does not submit, so the limit decides
        allreduce(runtime, "done")

    run_ranks(2, body, stall_check_time_seconds="0.2", stall_shutdown_time_seconds="0.6")


def test_leaving_fails_what_is_pending_on_the_others():
    def body(rank, runtime):
        if rank == 0:
            return
        error = caught(lambda: allreduce(runtime, "late"))
        assert isinstance(error, ShutDownError), error
        assert "late" in str(error)

    run_ranks(3, body)


def test_an_abort_reaches_every_rank_with_its_reason():
    def body(rank, runtime):
        if rank == 1:
            runtime.abort("the loss is not a number")
            return
        error = caught(lambda: allreduce(runtime, "x"))
        assert isinstance(error, AbortedError | ShutDownError), error
        if isinstance(error, AbortedError):
            assert "the loss is not a number" in str(error)

    run_ranks(3, body)


def test_bad_arguments_are_refused_before_anything_is_sent():
    def body(rank, runtime):
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
        allreduce(runtime, "bad")  # the name is free again
        error = caught(lambda: submit(runtime, ALLREDUCE, [array], [array], name="n" * 5000))
        assert isinstance(error, InvalidArgumentError)

    run_ranks(2, body)


def test_names_may_be_any_bytes():
    names = [b"\xff\xfe", b"quote'\"\n", b"", "gr\u00f6\u00dfe", "\udcff"]

    def body(rank, runtime):
        for name in names:
            allreduce(runtime, name)

    run_ranks(2, body)


def test_an_interrupt_keeps_the_handle_although_the_operation_ends_meanwhile():
    first, second = _core.start_in_process(2, {})
    array = np.ones(3, np.float32)
    handle = submit(first, ALLREDUCE, [array], [array], name="x")

    def interrupt(*_):
        allreduce(second, "x")
        threads = [threading.Thread(target=allreduce, args=(rank, "after")) for rank in (first, second)]
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


def test_a_rank_that_gives_up_an_operation_half_way_ends_it_on_all_ranks():
    def body(rank, runtime):
        error = caught(lambda: [allreduce(runtime, "large", (4_000_000,)) for _ in range(10)])
        assert isinstance(error, InternalError if rank == 1 else AbortedError), error
        assert "injected at data" in str(error) if rank == 1 else "rank 1 gave up allreduce half way" in str(error)
        assert isinstance(caught(lambda: allreduce(runtime, "after")), AbortedError)

    run_ranks(3, body, fault="data:1:3=drop")
