"""NumPy jobs beyond single collectives: objects, names, join, restart, threads, and how a call reaches the core."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.testing import run_ranks as run

all_sizes = pytest.mark.parametrize("size", [1, 2, 3, 4])


@on_ranks(1, 2, 3, 4)
def test_objects_of_any_kind_travel_between_ranks():
    me = hc.rank()
    for root in range(hc.size()):
        assert hc.broadcast_object({"rank": me, "list": [None, "ü"] * me}, root) == {
            "rank": root,
            "list": [None, "ü"] * root,
        }
    assert hc.allgather_object(("x" * me, me)) == [("x" * r, r) for r in range(hc.size())]
    double = hc.broadcast_object(lambda x: x * 2, name="function")
    assert double(21) == 42
    generator = (i for i in range(3))
    with pytest.raises(ValueError, match=r"rank 0: .*pickle"):
        hc.broadcast_object(generator, 0)
    with pytest.raises(ValueError, match=rf"rank {hc.size() - 1}: .*pickle"):
        hc.allgather_object(generator if me == hc.size() - 1 else 1)
    assert hc.broadcast_object(me, 0) == 0


@on_ranks(2)
def test_names_may_hold_any_character_and_any_byte():
    for name in ["quo\"te's", "new\nline", "tab\t", "ünïcode", b"\xff\xfe bytes", "\udcff escaped", "x" * 4000, ""]:
        np.testing.assert_array_equal(hc.allreduce(np.ones(2), op=hc.Sum, name=name), np.full(2, hc.size()))
        np.testing.assert_array_equal(hc.allreduce(np.ones(2), op=hc.Sum, name=name), np.full(2, hc.size()))
    with pytest.raises(ValueError, match="UTF-8"):
        hc.allreduce(np.ones(1), name="\ud800")


def test_joined_ranks_take_part_without_data_until_all_have_joined():
    def body():
        import horocache as hc

        hc.init()
        sums = []
        for step in range(hc.rank() + 1):
            sums.append(float(hc.allreduce(np.float64(1), op=hc.Sum, name=f"step{step}")))
        last = hc.join()
        return sums, last

    answers = run(body, 3)
    assert [sums for sums, _ in answers] == [[3.0], [3.0, 2.0], [3.0, 2.0, 1.0]]
    assert len({last for _, last in answers}) == 1


@on_ranks(3, init=False)
def test_the_runtime_can_be_started_again_after_it_ended():
    for epoch in range(5):
        hc.init()
        hc.init()
        assert hc.is_initialized()
        assert float(hc.allreduce(np.float64(epoch), op=hc.Sum)) == epoch * hc.size()
        hc.shutdown()
        hc.shutdown()
        assert not hc.is_initialized()
        with pytest.raises(ValueError, match="call init"):
            hc.allreduce(np.float64(0))


@on_ranks(24)
def test_twenty_four_processes_meet_and_sum():
    assert (float(hc.allreduce(float(hc.rank()), op=hc.Sum)), hc.allgather(hc.rank()).tolist()) == (
        276.0,
        list(range(24)),
    )


@on_ranks(3, init=False)
def test_what_a_job_held_is_given_back_at_shutdown():
    from pathlib import Path

    def held():
        """This process's resident bytes: shared memory, and private memory."""
        lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        return [int(lines[name].split()[0]) * 1024 for name in ("RssShmem", "RssAnon")]

    found = [held()]
    for _ in range(4):
        hc.init(shm_bytes=64 << 20, process_sets=[[0, 1]])
        for count in (3, 20_000_000):
            for made in filter(hc.ProcessSet.included, hc.process_sets()):
                hc.allgather(np.ones(count, np.uint8), name="rows", process_set=made)
            hc.allreduce(np.ones(count, np.uint8), op=hc.Sum, name="x")
        for handle in [hc.allreduce_async(np.ones(1), name=f"t{i}") for i in range(2000)]:
            hc.synchronize(handle)
        during = held()
        hc.shutdown()
        found += [during, held()]
    before, *rest = found
    during, after = rest[::2], rest[1::2]
    assert all(shared > before[0] for shared, _ in during), found
    assert all(shared == before[0] for shared, _ in after), found
    assert after[3][1] - after[0][1] < 20 << 20, found


def test_what_is_pending_when_a_rank_shuts_down_fails_there_and_on_the_others():
    def body():
        import horocache as hc

        hc.init()
        hc.barrier()
        if hc.rank() == 2:
            return []
        errors, error = [], hc.ShutDownError
        handles = [hc.allreduce_async(np.ones(3), name=f"pending.{i}") for i in range(2)]
        if hc.rank() == 1:
            hc.shutdown()
            error = hc.NotInitializedError
        for handle in handles:
            with pytest.raises(error) as failed:
                hc.synchronize(handle)
            errors.append(str(failed.value))
        return errors

    zero, one, _ = run(body, 3)
    assert all("call init() first" in text for text in one), one
    for number, text in enumerate(zero):
        assert f"'allreduce.pending.{number}'" in text and "shut down" in text and "rank" in text, zero


def test_operations_that_nobody_waits_for_keep_no_process_from_ending():
    def body():
        import horocache as hc

        hc.init()
        for step in range(20):
            hc.allreduce_async(np.ones(100_000), name=f"t{step}")
        if hc.rank() == 0:
            hc.allreduce_async(np.ones(3), name="of rank 0 alone")
        return "ended"

    outcomes = run(body, 3, check=False)
    assert [(o.value, o.exit_code) for o in outcomes] == [("ended", 0)] * 3, [o.describe() for o in outcomes]


@on_ranks(2)
def test_of_two_threads_that_wait_for_one_handle_one_gets_the_result():
    import threading

    handle = hc.allreduce_async(np.ones(3), op=hc.Sum, name="shared")
    answers, refused = [], []

    def wait():
        try:
            answers.append(hc.synchronize(handle))
        except hc.InvalidArgumentError as error:
            refused.append(str(error))

    waiters = [threading.Thread(target=wait) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()
    assert len(answers) == 1 and refused == [f"Handle {handle} was not created or has been cleared."]
    np.testing.assert_array_equal(hc.allreduce(np.ones(3), op=hc.Sum, name="next"), np.full(3, hc.size()))


@pytest.mark.parametrize("binding", ["native", "cffi"])
@on_ranks(2, init=False)
def test_an_operation_without_lists_of_rows_may_follow_one_with_them(binding):
    hc.init(binding=binding)
    n, rank = hc.size(), hc.rank()
    for turn in range(3):  # the core uses the records of operations again
        assert hc.allgatherv(np.full(2, rank), recvcounts=[2] * n, displs=[2 * r for r in range(n)]).size == 2 * n
        x = np.ones(5)
        assert hc.allreduce_(x, op=hc.Sum, name="in place")[0] == n
        rows, _ = hc.alltoallv(np.arange(n), sendcounts=[1] * n, recvcounts=[1] * n, sdispls=list(range(n)))
        assert rows.tolist() == [rank] * n
        assert [y[0] for y in hc.grouped_allreduce_([np.ones(2), np.ones(3)], op=hc.Sum, name="group")] == [n, n]
        gathered = hc.gatherv(np.full(1, turn), root_rank=0, recvcounts=[1] * n)
        assert hc.allgather(np.full(rank + 1, turn)).size == n * (n + 1) // 2
        assert (gathered is None) == (rank != 0)


@on_ranks(2, init=False)
def test_blocking_calls_alone_say_that_a_wait_follows():
    from horocache.core import context

    class Spy:
        def __getattr__(self, name):
            method = getattr(runtime, name)
            if name == "submit":
                return lambda request: (said.append(request.wait_follows), method(request))[1]
            place = {"allreduce_in_place": 5, "allreduce_group_in_place": 7}.get(name)
            if place is None:
                return method
            return lambda *arguments: (said.append(arguments[place]), method(*arguments))[1]

    hc.init()
    runtime, said = context.current().runtime, []
    context.current().runtime = Spy()
    x, wrong = np.ones(4), []
    rooted = ("broadcast", "reduce", "gather", "scatter")
    for name in hc.__all__:
        kind = name.rstrip("_").removesuffix("_async").removeprefix("grouped_")
        kind = kind.removesuffix("v")
        if kind not in (*rooted, "allreduce", "allgather", "reducescatter", "alltoall"):
            continue
        said.clear()
        more = {"root_rank": 0} if kind in rooted else {}
        more |= {"recvcounts": [2, 2]} if name.startswith("reducescatterv") else {}
        more |= {"sendcounts": [2, 2]} if name.startswith("alltoallv") else {}
        answer = getattr(hc, name)([x] if name.startswith("grouped_") else x, **more)
        if "_async" in name:
            hc.synchronize(answer)
        if said != ["_async" not in name]:
            wrong.append((name, said[:]))
    assert wrong == []
