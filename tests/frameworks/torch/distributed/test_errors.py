"""Errors in groups of the backend horocache reach all ranks at once and name ranks and values."""

from __future__ import annotations

import datetime
import os
import signal

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

import horocache as hc
from horocache.testing import run_ranks

from .distributed_job import enter, group


def seconds(count):
    return datetime.timedelta(seconds=count)


@on_ranks(3, init=False)
def test_mismatched_calls_raise_on_all_ranks_and_the_group_continues(tmp_path):
    def check_mismatch(words, *calls):
        with pytest.raises(hc.MismatchError, match=words) as caught:
            calls[min(rank, len(calls) - 1)]()
        assert isinstance(caught.value, RuntimeError)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == ranks

    def cases():
        yield (
            r"shape \[(4|3)\], rank",
            lambda: dist.all_reduce(torch.ones(4)),
            lambda: dist.all_reduce(torch.ones(3)),
        )
        yield (
            "operation broadcast",
            lambda: dist.broadcast(torch.ones(3), 0),
            lambda: dist.all_reduce(torch.ones(3)),
        )
        yield "dtype float", lambda: dist.all_reduce(torch.ones(1)), lambda: dist.all_reduce(torch.ones(1).double())
        yield (
            "reduce op",
            lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.MAX),
            lambda: dist.all_reduce(torch.ones(1)),
        )
        yield "root", lambda: dist.broadcast(torch.ones(1), 0), lambda: dist.broadcast(torch.ones(1), 1)
        short = [torch.zeros(1) for _ in range(ranks)]
        long = [torch.zeros(2) for _ in range(ranks)]
        yield "expects", lambda: dist.all_gather(short, torch.ones(1)), lambda: dist.all_gather(long, torch.ones(2))
        yield "operation barrier", dist.barrier, lambda: dist.all_reduce(torch.ones(1))

    with group(tmp_path) as (rank, ranks):
        for words, *calls in cases():
            check_mismatch(words, *calls)
        for _ in range(150):  # until all operations are cached
            dist.all_reduce(torch.ones(3))
            dist.broadcast(torch.ones(2), 0)
        for words, *calls in cases():
            check_mismatch(words, *calls)
        with pytest.raises(ValueError, match="the output of all_gather has 3 elements; it needs 6"):
            dist.all_gather_into_tensor(torch.zeros(3), torch.ones(2))
        with pytest.raises(ValueError, match=r"must add up to 4, the rows of the input"):
            dist.all_to_all_single(torch.zeros(4), torch.zeros(4), None, [1] * ranks)
        if rank == 0:
            dist.send(torch.ones(3), 1)
        elif rank == 1:
            with pytest.raises(hc.MismatchError, match="rank 0 sends 3 elements"):
                dist.recv(torch.ones(4), 0)
        dist.barrier()


@on_ranks(2, init=False)
def test_every_wait_ends_after_a_mismatch_among_pending_operations(tmp_path):
    with group(tmp_path, seconds=2) as (rank, _):
        shapes = [[3], [3], [5], [3]] if rank else [[3], [3], [3], [5]]
        works = [dist.all_reduce(torch.ones(shape), async_op=True) for shape in shapes]
        errors = []
        for work in works:
            try:
                work.wait()
            except hc.HorocacheError as error:
                errors.append(type(error))
        assert hc.MismatchError in errors and works[0].is_success()


@on_ranks(2, init=False)
def test_ddp_raises_the_mismatch_of_its_allreduce(tmp_path):
    with group(tmp_path) as (rank, _):
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        for _ in range(2):  # the second step rebuilds DDP's buckets
            model(torch.ones(2, 4)).sum().backward()
        with pytest.raises(RuntimeError, match=r"submitted shape \[(1|20)\], rank . submitted shape \[(1|20)\]"):
            if rank == 0:
                dist.all_reduce(torch.ones(1))
            else:
                model(torch.ones(2, 4)).sum().backward()


@on_ranks(3, init=False)
def test_time_limits_of_waits_barriers_and_groups(tmp_path):
    with group(tmp_path) as (rank, ranks):
        quick = dist.new_group(timeout=seconds(0.3))
        tensor = torch.ones(1)
        if rank == 0:
            with pytest.raises(hc.StallError, match=r"process group '1' .*is not over after 0\.3 s.* It goes on"):
                dist.all_reduce(tensor, group=quick)
            work = dist.all_reduce(torch.ones(1), async_op=True)
            with pytest.raises(RuntimeError, match=r"process group '0' .*is not over after 0\.1 s"):
                work.wait(seconds(0.1))
            assert not work.is_completed()
            dist.send(torch.ones(1), 1)
            assert work.wait()
            with pytest.raises(hc.StallError, match=r"barrier 'torch\.0\..* is not done on rank 0 after"):
                dist.barrier(timeout=seconds(0.1))
            dist.send(torch.ones(1), 1)
        else:
            if rank == 1:
                dist.recv(torch.ones(1), 0)
            dist.all_reduce(torch.ones(1))
            dist.all_reduce(tensor, group=quick)
            assert tensor.item() == ranks
            if rank == 1:
                dist.recv(torch.ones(1), 0)
            dist.barrier()
        dist.barrier()


def test_every_operation_and_future_names_a_killed_rank(tmp_path):
    def communicate(folder):
        rank, _ = enter(folder)
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        pair = dist.new_group([0, 2])
        loss = model(torch.ones(2, 4)).sum()
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"rank 1 \(pid .* was killed by signal 9"):
            loss.backward()
        with pytest.raises(hc.PeerLostError, match="rank 1"):
            dist.all_reduce(torch.ones(1))
        with pytest.raises(RuntimeError, match="PeerLostError"):
            dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=pair)  # rank 1 is not a member
        assert tensor.item() == 2
        with pytest.raises(RuntimeError, match="PeerLostError"):  # float16 has typed futures
            dist.all_reduce(torch.ones(1, dtype=torch.float16), async_op=True).get_future().wait()
        dist.destroy_process_group()

    outcomes = run_ranks(communicate, 3, args=(tmp_path,), check=False)
    assert outcomes[1].exit_code == -signal.SIGKILL
    assert outcomes[0].ok and outcomes[2].ok, [outcome.describe() for outcome in outcomes]


@on_ranks(3, init=False)
def test_a_rank_leaves_a_group_without_waiting_for_others(tmp_path):
    with group(tmp_path) as (rank, _):
        pair = dist.new_group([0, 1])
        if rank == 0:
            dist.destroy_process_group(pair)
            dist.send(torch.ones(1), 1)
        elif rank == 1:
            dist.recv(torch.ones(1), 0)
            with pytest.raises(hc.ShutDownError, match="rank 0 has left process set 1"):
                dist.barrier(group=pair)
        dist.barrier()
        pg = dist.group.WORLD
    with pytest.raises(hc.ShutDownError, match=r"process group '0' .* has been destroyed; make another"):
        pg.allreduce([torch.ones(1)])


@on_ranks(2, init=False)
def test_a_forked_child_cannot_use_the_group(tmp_path):
    with group(tmp_path) as (_, ranks):
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(torch.ones(1))
            except hc.ForkedProcessError:
                dist.destroy_process_group()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        loader = torch.utils.data.DataLoader(range(4), batch_size=2, num_workers=1)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == ranks
