"""M20: groups that overlap, each with another backend, and barriers that name the missing ranks."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
import horocache.mcr_dl as mcr_dl

from . import cases


@on_ranks(4, init=False)
def test_m20_overlapping_groups_with_operations_of_each_in_flight_together():
    mcr_dl.init(["shm", "loopback"])
    rank = mcr_dl.get_rank()
    groups = [mcr_dl.new_group(ranks) for ranks in ([0, 1], [1, 2], [2, 3], [3, 0], [2, 0, 3], [1])]
    ways = ["shm", "auto", "shm/oneshot", ["shm"], "shm", "loopback"]
    mine = [(group, way) for group, way in zip(groups, ways, strict=True) if rank in group.ranks]
    for step in range(20):
        order = np.random.default_rng([step, rank]).permutation(len(mine))
        started = []
        for number in order:
            group, way = mine[number]
            tensor = np.full(3, float(rank + step))
            started.append((mcr_dl.all_reduce(way, tensor, async_op=True, group=group), tensor, group))
        for handle, tensor, group in started:
            handle.wait()
            assert tensor[0] == sum(group.ranks) + step * group.size()
    mcr_dl.finalize()


@on_ranks(4, init=False)
def test_m20_a_rank_outside_a_group_cannot_use_it():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    group = mcr_dl.new_group([3, 1])
    assert group.ranks == [1, 3] and group.size() == 2 == mcr_dl.get_size(group=group)
    assert mcr_dl.get_rank(group=group) == group.rank() == {1: 0, 3: 1}.get(rank, -1)
    assert mcr_dl.get_rank(group) == group.rank()  # PyTorch's form
    if group.rank() < 0:
        for call in (mcr_dl.all_reduce, mcr_dl.all_gather, mcr_dl.reduce_scatter):
            with pytest.raises(hc.InvalidArgumentError, match=rf"Rank {rank} is not a member of .*\[1, 3\]"):
                call("shm", np.ones(2), group=group)
        with pytest.raises(hc.InvalidArgumentError, match="not a member"):
            mcr_dl.monitored_barrier(1, group=group)
    else:
        tensor = np.full(2, float(rank))
        mcr_dl.all_reduce("shm", tensor, group=group)
        assert tensor[0] == 4
        with pytest.raises(hc.InvalidArgumentError, match=r"invalid root rank 0 .* \[1, 3\]"):
            mcr_dl.bcast("shm", tensor, 0, group=group)
        mcr_dl.bcast("shm", tensor, 3, group=group)  # roots are global ranks
        mcr_dl.monitored_barrier(60, group=group)
        mcr_dl.barrier(group=group)
    for bad in ([0], 3, "world"):
        with pytest.raises(hc.InvalidArgumentError, match="group must come from new_group"):
            mcr_dl.all_reduce("shm", np.ones(1), group=bad)
    again = mcr_dl.new_group([1, 3])
    assert again.process_set is group.process_set
    mcr_dl.destroy_process_group(group)
    with pytest.raises(hc.InvalidArgumentError, match="has been destroyed"):
        mcr_dl.barrier(group=group)
    if again.rank() >= 0:
        mcr_dl.barrier(group=again)
    mcr_dl.destroy_process_group(again)
    mcr_dl.destroy_process_group(again)
    assert again.process_set.process_set_id is None
    mcr_dl.destroy_process_group()
    assert not mcr_dl.is_initialized()


@on_ranks(3, init=False)
def test_m20_every_operation_conforms_on_a_group():
    mcr_dl.init("shm")
    group = mcr_dl.new_group([2, 0])
    if group.rank() >= 0:
        for kind in ("numpy", "torch"):
            for dtype in ("int64", "float32"):
                maker = cases_maker(kind, dtype)
                for shape in ((), (7,), (3, 5)):
                    cases_operations("shm", maker, group).all(shape)
                for seed in range(3):
                    cases_vectored("shm", maker, group).all(seed)
    own = hc.add_process_set([1, 2])  # a process set of horocache is a group, too
    if own.included():
        tensor = np.ones(2)
        mcr_dl.all_reduce("shm", tensor, group=own)
        assert tensor.tolist() == [2.0, 2.0] and mcr_dl.get_rank(group=own) == own.rank()
    mcr_dl.finalize()


cases_maker, cases_operations, cases_vectored = cases.Maker, cases.Operations, cases.VectoredOperations


@on_ranks(3, init=False)
def test_monitored_barrier_names_the_ranks_that_did_not_come_on_all_that_came():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    for _ in range(3):
        mcr_dl.monitored_barrier(60)
    if rank == 0:
        with pytest.raises(hc.StallError, match=r"rank\(s\) 1, 2 did not come within 0.3 s"):
            mcr_dl.monitored_barrier(0.3, wait_all_ranks=True)
    mcr_dl.barrier()
    if rank:  # the leader has gone: its verdict is there
        with pytest.raises(hc.StallError, match=r"rank\(s\) 1, 2 did not come"):
            mcr_dl.monitored_barrier(60, wait_all_ranks=True)
    mcr_dl.barrier()
    mcr_dl.monitored_barrier(60)  # messages of the failed one are dropped
    if rank == 1:
        with pytest.raises(hc.StallError, match=r"rank\(s\) 0 did not come within 0.2 s"):
            mcr_dl.monitored_barrier(0.2, wait_all_ranks=True)
    mcr_dl.barrier()
    if rank != 1:  # calls are counted, and rank 1 has made this one
        mcr_dl.monitored_barrier(60)
    if rank == 0:
        with pytest.raises(hc.StallError, match=r"at least rank\(s\) 1 did not come"):
            mcr_dl.monitored_barrier(0.3)
    mcr_dl.barrier()
    with pytest.raises(hc.InvalidArgumentError, match="timeout must be"):
        mcr_dl.monitored_barrier(-1)
    mcr_dl.finalize()


@on_ranks(2)
def test_monitored_barrier_meets_the_right_one_after_a_new_init():
    mcr_dl.init("shm")
    if mcr_dl.get_rank() == 0:
        with pytest.raises(hc.StallError, match=r"rank\(s\) 1 did not come"):
            mcr_dl.monitored_barrier(0.1)
    hc.barrier()
    mcr_dl.finalize()
    mcr_dl.init("shm")
    for _ in range(3):
        mcr_dl.monitored_barrier(60)
    mcr_dl.finalize()


@on_ranks(3, init=False)
def test_monitored_barrier_without_a_limit_reports_what_another_rank_found_in_its_limit():
    mcr_dl.init("shm", stall_shutdown_time_seconds=0)
    rank = mcr_dl.get_rank()
    if rank < 2:
        words = "within 0.2 s" if rank == 0 else "in the time limit of another rank"
        with pytest.raises(hc.StallError, match=rf"rank\(s\) 2 did not come {words}"):
            mcr_dl.monitored_barrier(0.2 if rank == 0 else None, wait_all_ranks=True)
    hc.barrier()
    mcr_dl.finalize()
