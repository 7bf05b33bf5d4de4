"""Messages between ranks through the whole daemon; the ranks are threads of one process."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from horocache.errors import (
    AbortedError,
    InvalidArgumentError,
    MismatchError,
    ShutDownError,
    StallError,
    UnsupportedError,
)

from .conftest import on_ranks
from .operations import RECV, SEND, allreduce_ones, caught, finish, submit, submit_sum

SMALL, LARGE = 100, 300_000  # bytes: sent eagerly, and sent in pieces


def send(runtime, array, dst, tag=0, **options):
    return submit(runtime, SEND, [array], None, root=dst, tag=tag, **options)


def recv(runtime, array, src, tag=0, **options):
    return submit(runtime, RECV, [array], [array], root=src, tag=tag, **options)


@pytest.mark.parametrize("count", [0, 1, SMALL, LARGE])
@on_ranks(1, 2, 3, 4)
def test_messages_go_round_a_ring_of_any_size(rank, runtime, size, count):
    for step in range(5):
        mine, got = np.full(count, rank + step, np.uint8), np.empty(count, np.uint8)
        finish(runtime, recv(runtime, got, (rank - 1) % size, step), send(runtime, mine, (rank + 1) % size, step))
        np.testing.assert_array_equal(got, (rank - 1) % size + step)
    metrics = runtime.metrics()
    assert metrics["messages_sent"] == metrics["messages_received"] == 5
    assert metrics["message_bytes_sent"] == metrics["message_bytes_received"] == 5 * count
    assert metrics["op_count.send"] == 5
    assert metrics["cache_misses"] == 0, "messages take part in no round"


@on_ranks(4)
def test_blocking_messages_of_several_threads_do_not_wait_for_each_other(rank, runtime):
    """Every rank runs one thread per other rank, which exchanges messages with it in turns, while all ranks reduce."""
    errors = []

    def play(peer):
        try:
            for step in range(15):
                ball = np.full(SMALL if step % 3 else LARGE, step, np.uint8)
                got = np.empty_like(ball)
                calls = [lambda: send(runtime, ball, peer, step), lambda: recv(runtime, got, peer, step)]  # noqa: B023
                for call in calls if rank < peer else calls[::-1]:
                    finish(runtime, call())
                np.testing.assert_array_equal(got, step)
        except BaseException as error:  # asserted on at the end
            errors.append(error)

    threads = [threading.Thread(target=play, args=(peer,), daemon=True) for peer in range(4) if peer != rank]
    for thread in threads:
        thread.start()
    for step in range(30):
        array = np.full(1000, step, np.float32)
        finish(runtime, submit_sum(runtime, array, name="x"))
        np.testing.assert_array_equal(array, 4 * step)
    for thread in threads:
        thread.join(60.0)
    assert not errors, errors


@on_ranks(4)
def test_all_ranks_may_send_all_messages_before_any_rank_receives(rank, runtime):
    rng = np.random.default_rng(7)
    sizes = rng.choice([0, 3, SMALL, LARGE], (4, 4, 6))
    content = [[[rng.integers(0, 255, n, np.uint8) for n in row] for row in plane] for plane in sizes]
    mine = content[rank]
    handles = [send(runtime, one, dst, i % 2) for dst in range(4) for i, one in enumerate(mine[dst])]
    got = [[np.empty(n, np.uint8) for n in sizes[src][rank]] for src in range(4)]
    for src in reversed(range(4)):
        for tag in (1, 0):
            handles += [recv(runtime, one, src, tag) for one in got[src][tag::2]]
    finish(runtime, *handles)
    for src in range(4):
        for i in range(6):
            np.testing.assert_array_equal(got[src][i], content[src][rank][i], f"from {src}, number {i}")


@on_ranks(3)
def test_a_message_mismatch_is_named_on_both_ranks_and_the_next_message_arrives(rank, runtime):
    if rank == 0:
        return
    array = np.zeros(LARGE if rank == 1 else LARGE // 4, np.uint8 if rank == 1 else np.float32)
    handle = send(runtime, array, 2, 3) if rank == 1 else recv(runtime, array, 1, 3)
    error = caught(lambda: finish(runtime, handle))
    assert isinstance(error, MismatchError), error
    assert f"rank 1 sends {LARGE} elements of uint8" in str(error)
    assert f"rank 2 receives {LARGE // 4} elements of float32" in str(error)
    again = np.full(LARGE, rank, np.uint8)
    finish(runtime, send(runtime, again, 2, 3) if rank == 1 else recv(runtime, again, 1, 3))
    np.testing.assert_array_equal(again, 1)


@on_ranks(3)
def test_messages_sent_before_their_sender_left_arrive_and_later_receives_fail(rank, runtime, event):
    if rank == 0:
        finish(runtime, send(runtime, np.full(SMALL, 7, np.uint8), 1, 1))
        runtime.stop()
        event.set()
        return
    pending = recv(runtime, np.empty(SMALL, np.uint8), 0, 2)
    error = caught(lambda: finish(runtime, pending))
    assert isinstance(error, ShutDownError), error
    assert "rank 0" in str(error) and "tag 2" in str(error)
    assert event.wait(30.0)
    if rank == 1:
        got = np.empty(SMALL, np.uint8)
        finish(runtime, recv(runtime, got, 0, 1))
        np.testing.assert_array_equal(got, 7)
    for call in (lambda: recv(runtime, np.empty(1, np.uint8), 0), lambda: send(runtime, np.empty(1, np.uint8), 0)):
        error = caught(lambda call=call: finish(runtime, call()))
        assert isinstance(error, ShutDownError), error
    peer, mine, got = 3 - rank, np.full(LARGE, rank, np.uint8), np.empty(LARGE, np.uint8)
    finish(runtime, recv(runtime, got, peer), send(runtime, mine, peer))  # the other ranks go on
    np.testing.assert_array_equal(got, peer)


@on_ranks(3)
def test_a_rank_that_stops_fails_its_own_pending_messages(rank, runtime):
    handle = recv(runtime, np.empty(1, np.uint8), (rank + 1) % 3)
    runtime.stop()
    error = caught(lambda: finish(runtime, handle))
    assert isinstance(error, ShutDownError), error


@on_ranks(3)
def test_an_abort_fails_pending_receives_with_its_reason(rank, runtime):
    if rank == 1:
        runtime.abort("the loss is not a number")
        return
    error = caught(lambda: finish(runtime, recv(runtime, np.empty(1, np.uint8), 2 - rank)))
    assert isinstance(error, AbortedError | ShutDownError), error
    if isinstance(error, AbortedError):
        assert "the loss is not a number" in str(error)


@on_ranks(3, stall_check_time_seconds="0.2", stall_shutdown_time_seconds="0.8")
def test_a_receive_without_a_message_fails_after_the_limit_and_the_job_goes_on(rank, runtime, event):
    if rank == 0:
        error = caught(lambda: finish(runtime, recv(runtime, np.empty(SMALL, np.uint8), 2, 5)))
        event.set()
        assert isinstance(error, StallError), error
        assert "recv from rank 2 with tag 5 (100 bytes)" in str(error) and "on rank 0" in str(error)
    assert event.wait(30.0)
    allreduce_ones(runtime, "after")


@on_ranks(3)
def test_a_wait_for_a_message_is_no_certain_deadlock(rank, runtime, event):
    """Rank 0 waits for a message, rank 1 for a sum that rank 0 lacks. Rank 2's late message ends both waits."""
    got = np.empty(1, np.uint8)
    if rank == 0:
        finish(runtime, recv(runtime, got, 2))
    if rank == 2:
        event.wait(0.7)  # sleeps for longer than ranks wait before a deadlock counts as certain
        finish(runtime, send(runtime, got, 0))
    allreduce_ones(runtime, "sum")


@on_ranks(2)
def test_a_wait_that_reaches_its_time_limit_leaves_the_handle_usable(rank, runtime, event):
    array = np.full(LARGE, rank, np.uint8)
    if rank == 1:
        assert event.wait(30.0)
        finish(runtime, recv(runtime, array, 0))
        np.testing.assert_array_equal(array, 0)
        return
    handle = send(runtime, array, 1)
    assert isinstance(caught(lambda: runtime.wait(handle, 0.05)), TimeoutError)
    assert not runtime.poll(handle)
    event.set()
    finish(runtime, handle)


@on_ranks(4, process_sets=[[0, 1, 2], [0, 1]], stall_check_time_seconds="0.5", stall_shutdown_time_seconds="1.5")
def test_messages_of_crossed_process_sets_are_separate(rank, runtime):
    """Ranks 0 and 1 are in both sets and use the same tag in both."""
    if rank == 3:
        error = caught(lambda: send(runtime, np.ones(1), 0, process_set=1))
        assert isinstance(error, InvalidArgumentError), error
    if rank == 0:
        error = caught(lambda: send(runtime, np.ones(1), 2, process_set=2))
        assert isinstance(error, InvalidArgumentError), error
        assert "rank 2" in str(error)
    if rank > 1:
        return
    for count in (SMALL, LARGE):
        got = {number: np.empty(count, np.uint8) for number in range(3)}
        peer = 1 - rank
        mine = [np.full(count, 10 * number + rank, np.uint8) for number in got]
        sent = [send(runtime, array, peer, process_set=number) for number, array in enumerate(mine)]
        received = [recv(runtime, got[number], peer, process_set=number) for number in reversed(list(got))]
        finish(runtime, *received, *sent)
        for number, array in got.items():
            np.testing.assert_array_equal(array, 10 * number + peer)
    error = caught(lambda: finish(runtime, recv(runtime, np.empty(1, np.uint8), 1 - rank, 5, process_set=2)))
    assert isinstance(error, StallError | ShutDownError), error  # the other rank may have failed before, and left
    assert "in process set 2" in str(error)


@on_ranks(2)
def test_invalid_arguments_raise(rank, runtime):
    array, frozen = np.ones(3, np.float32), np.ones(3, np.float32)
    frozen.flags.writeable = False
    for call in (
        lambda: send(runtime, array, 2),
        lambda: send(runtime, array, -1),
        lambda: recv(runtime, array, 0, -1),
        lambda: recv(runtime, frozen, 0),
        lambda: submit(runtime, RECV, [array], None, root=0),
        lambda: submit(runtime, SEND, [array, array], None, root=0),
        lambda: submit(runtime, SEND, [], None, root=0),
        lambda: send(runtime, array, 0, process_set=9),
    ):
        error = caught(call)
        assert isinstance(error, InvalidArgumentError | UnsupportedError), error
