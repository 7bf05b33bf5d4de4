"""Process sets that are given to ``init``, and join, between processes."""

from __future__ import annotations

import os
import resource
import threading
import time

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks

import horocache as hc
from horocache.testing import Fault, run_ranks

from .bindings import both_bindings


@both_bindings
@on_ranks(4, init=False)
def test_every_operation_accepts_a_process_set_of_init(binding):
    even, tail = hc.ProcessSet([2, 0]), hc.ProcessSet([1, 2, 3])
    assert even.process_set_id is None
    hc.init(process_sets=[even, tail, [0, 3]])
    me = hc.rank()
    assert [made.process_set_id for made in hc.process_sets()] == [0, 1, 2, 3]
    assert [made.ranks for made in hc.process_sets()] == [[0, 1, 2, 3], [0, 2], [1, 2, 3], [0, 3]]
    assert hc.process_sets()[1] is even
    for made in hc.process_sets():
        assert made.included() == (me in made.ranks) and made.size() == len(made.ranks)
        if not made.included():
            with pytest.raises(hc.InvalidArgumentError, match=f"Rank {me} is not a member"):
                made.rank()
            with pytest.raises(hc.InvalidArgumentError, match=f"rank {me} is not in process set"):
                hc.allreduce(np.ones(2), process_set=made)
            continue
        assert made.rank() == made.ranks.index(me)
        assert hc.allreduce(np.full(2, me), op=hc.Sum, process_set=made).tolist() == [sum(made.ranks)] * 2
        assert hc.allreduce(np.full(2, 2.0 * me), process_set=made)[0] == 2 * sum(made.ranks) / made.size()
        assert hc.allgather(np.full((1, 2), me), process_set=made)[:, 0].tolist() == made.ranks
        root = made.ranks[-1]
        assert hc.broadcast(np.full(1, me), root, process_set=made)[0] == root
        assert hc.allgather_object(("of", me), process_set=made) == [("of", r) for r in made.ranks]
        assert hc.broadcast_object(me, root, process_set=made) == root
        hc.barrier(process_set=made)
        outside = ({0, 1, 2, 3} - set(made.ranks)) or {4}
        with pytest.raises(hc.InvalidArgumentError, match="invalid root rank"):
            hc.broadcast(np.ones(1), outside.pop(), process_set=made)
    assert not hc.remove_process_set(hc.ProcessSet([0]))
    with pytest.raises(hc.InvalidArgumentError, match="has not been registered"):
        hc.barrier(process_set=hc.ProcessSet([0, 2]))


@on_ranks(3, init=False)
def test_each_init_has_its_own_process_sets():
    first, second = hc.ProcessSet([0, 1]), hc.ProcessSet([1, 2])
    for sets in ([first], [second, first], [], [second]):
        hc.init(process_sets=sets)
        assert [made.process_set_id for made in sets] == list(range(1, len(sets) + 1))
        for made in {first, second} - set(sets):
            assert made.process_set_id is None
        for made in sets:
            if made.included():
                assert hc.allreduce(np.ones(1), op=hc.Sum, process_set=made)[0] == 2
        again = [hc.ProcessSet(made.ranks) for made in sets]
        hc.init(process_sets=again)  # the same sets: no restart, but the new objects become usable
        hc.init()
        assert [made.process_set_id for made in again] == [made.process_set_id for made in sets]
        with pytest.raises(hc.InvalidArgumentError, match=r"runs already, started with process sets"):
            hc.init(process_sets=[[0, 2]])
        hc.shutdown()
        assert all(made.process_set_id is None for made in [first, second, *again])


@on_ranks(2, init=False)
def test_invalid_lists_of_sets_raise_before_the_ranks_connect():
    for wrong, words in {
        (("a",),): "whole numbers",
        ((0, 0),): "distinct",
        (3,): "list of ranks or a communicator",
        ("01",): "list of ranks or a communicator",
        (hc.global_process_set,): "is the global one",
    }.items():
        with pytest.raises(hc.InvalidArgumentError, match=words):
            hc.init(process_sets=list(wrong))
    with pytest.raises(hc.InvalidArgumentError, match="list of process sets"):
        hc.init(process_sets=3)
    assert not hc.is_initialized()
    hc.init(process_sets=[[1]])
    assert hc.allreduce(np.ones(1), op=hc.Sum)[0] == 2


@on_ranks(2, init=False)
def test_sets_with_ranks_outside_the_job_raise_on_all_ranks():
    made = hc.ProcessSet([0, 2])
    with pytest.raises(hc.InvalidArgumentError, match=r"process set 1 \(\[0, 2\]\) has ranks .*: it has 2"):
        hc.init(process_sets=[made])
    assert not hc.is_initialized() and made.process_set_id is None


@on_ranks(2, 3, init=False)
def test_init_raises_if_the_sets_differ_between_ranks():
    sets, text = {
        2: ([[[0], [1]], [[0]]], "process set 2: '1' on rank 0, no such value on rank 1"),
        3: ([[[0, 1]], [[0, 1]], [[0, 2]]], "process set 1: '0, 1' on ranks 0 and 1, '0, 2' on rank 2"),
    }[int(os.environ["HOROCACHE_SIZE"])]
    with pytest.raises(hc.VersionSkewError) as failed:
        hc.init(process_sets=sets[int(os.environ["HOROCACHE_RANK"])])
    assert text in str(failed.value)


@on_ranks(3, init=False)
def test_a_set_that_fails_to_start_raises_on_its_members_and_on_others():
    if os.environ["HOROCACHE_RANK"] == "1":  # rank 1 creates the set's memory, rank 0 the world's
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    if os.environ["HOROCACHE_RANK"] == "0":
        hc.init(process_sets=[[1, 2]])
        with pytest.raises(hc.HorovodInternalError, match=r"rank(s)? (1|2)"):
            hc.barrier()
        return
    with pytest.raises(hc.OutOfMemoryError) as failed:
        hc.init(process_sets=[[1, 2]])
    text = str(failed.value)
    assert "the ranks of process set 1 (ranks 1, 2) could not connect: rank 1" in text and "ulimit -f" in text


@on_ranks(4, init=False)
def test_threads_use_overlapping_sets_in_different_orders():
    sets = [hc.ProcessSet([0, 1, 2]), hc.ProcessSet([1, 2, 3]), hc.ProcessSet([0, 3])]
    hc.init(process_sets=sets)
    wrong = []

    def use(made):
        for step in range(50):
            got = hc.allreduce(np.full(100, hc.rank() + step), op=hc.Sum, name="x", process_set=made)
            if not (got == sum(made.ranks) + step * made.size()).all():
                wrong.append((made, step, got[0]))

    mine = [made for made in hc.process_sets() if made.included()]
    threads = [threading.Thread(target=use, args=(made,)) for made in mine[:: -1 if hc.rank() % 2 else 1]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("place", ["data", "done"])
def test_a_killed_rank_fails_its_sets_and_the_world_but_no_other_set(place):
    def use_sets_while_rank_3_dies():
        pair, hit = hc.ProcessSet([0, 1]), hc.ProcessSet([1, 2, 3])
        hc.init(process_sets=[pair, hit])
        if hit.included():
            with pytest.raises(hc.PeerLostError, match=r"rank 3 .*signal 9"):
                for step in range(100):
                    hc.allreduce(np.ones(100_000), name=f"t{step % 3}", process_set=hit)
        else:
            with pytest.raises(hc.PeerLostError, match=r"rank 3 .*signal 9"):
                hc.barrier()
        if pair.included():
            for _ in range(3):
                assert hc.allreduce(np.ones(2), op=hc.Sum, process_set=pair)[0] == 2
        with pytest.raises(hc.PeerLostError, match="rank 3"):
            hc.barrier()
        return "survived"

    outcomes = run_ranks(use_sets_while_rank_3_dies, 4, faults=[Fault(place, "kill", 3, 2)], check=False)
    assert [o.value for o in outcomes] == ["survived"] * 3 + [None], [o.describe() for o in outcomes]


def test_a_stall_report_names_the_set_and_its_global_ranks(tmp_path):
    def stall_in_a_set(failed):
        hc.init(process_sets=[[1, 3]])
        (_, made) = hc.process_sets()
        if hc.rank() == 1:
            with pytest.raises(hc.StallError, match=r"of process set 1 was submitted by rank 1 and not by rank 3"):
                hc.allreduce(np.ones(1), name="alone", process_set=made)
            failed.touch()
        while not failed.exists():
            time.sleep(0.01)
        hc.barrier()

    knobs = {"stall_check_time_seconds": 0.2, "stall_shutdown_time_seconds": 0.5}
    outcomes = run_ranks(stall_in_a_set, 4, args=(tmp_path / "failed",), knobs=knobs, check=False)
    assert all(outcome.ok for outcome in outcomes), [o.describe() for o in outcomes]
    for rank in (1, 3):
        assert "of process set 1 was submitted by rank 1 and not by rank 3" in outcomes[rank].output
    assert "process set 1" not in outcomes[0].output


@pytest.mark.parametrize(("divide_by", "binding"), [("all", "native"), ("active", "native"), ("active", "cffi")])
@on_ranks(4, init=False)
def test_join_on_a_set_returns_the_last_rank_and_divides_as_requested(divide_by, binding):
    made = hc.ProcessSet([0, 2, 3])
    hc.init(process_sets=[made])
    if made.included():
        for step in range(made.rank() + 1):
            live = made.ranks[step:]
            divisor = len(live) if divide_by == "active" else 3
            for name in ("same", f"step{step}"):
                got = hc.allreduce(np.full(2, 6.0 * hc.rank()), name=name, process_set=made)
                assert np.allclose(got, 6 * sum(live) / divisor), (step, got)
            assert hc.allgather_object(hc.rank(), process_set=made) == live
            if step > 0:
                with pytest.raises(hc.UnsupportedError, match="root, rank 0, has joined"):
                    hc.broadcast_object("x", 0, process_set=made)
                with pytest.raises(hc.UnsupportedError, match="root, rank 0, has joined"):
                    hc.broadcast(np.ones(1), 0, process_set=made)
            assert hc.broadcast_object(hc.rank(), 3, process_set=made) == 3
        assert hc.join(process_set=made, divide_by=divide_by) == 3
    else:
        with pytest.raises(hc.InvalidArgumentError, match="rank 1 is not in process set 1"):
            hc.join(process_set=made)
        for wrong in ("some", None):
            with pytest.raises(hc.InvalidArgumentError, match=f"divide_by={wrong!r}"):
                hc.join(divide_by=wrong)
    hc.barrier()
    assert hc.join() in range(4)


@on_ranks(4, init=False)
def test_an_optimizer_and_sparse_gradients_on_a_set_with_uneven_data():
    half = hvd.ProcessSet([1, 2, 3])
    hvd.init(process_sets=[half])
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), process_set=half
    )
    if not half.included():  # rank 0 trains alone
        model(torch.full((1, 2), 5.0)).sum().backward()
        optimizer.step()
        assert model.weight.tolist() == [[-5.0, -5.0]]
    else:
        weights = 0.0
        for step in range(half.rank() + 1):
            live = half.ranks[step:]
            optimizer.zero_grad()
            (model(torch.full((1, 2), float(hvd.rank())))).sum().backward()
            optimizer.step()
            weights -= sum(live) / len(live) if step else sum(live) / 3
            assert torch.allclose(model.weight, torch.full((1, 2), weights)), (step, model.weight, weights)
            values = torch.sparse_coo_tensor([[0]], [6.0 * hvd.rank()], (3,))
            mean = hvd.sparse_allreduce_async(values, "sparse", hvd.Average, half)().to_dense()
            assert mean[0] == 6 * sum(live) / len(live), (step, mean)
        assert hvd.join(process_set=half, divide_by="active") == 3
    hvd.barrier()
