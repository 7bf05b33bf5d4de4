"""Every operation of torch.distributed over the backend horocache, against values that the tests compute."""

from __future__ import annotations

import gc
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from horocache.torch.distributed.work import JointWork
from ranks import on_ranks

from .distributed_job import group

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
REALS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)


def reduced(op, parts):
    """The parts of all ranks reduced by an operation, in a type that holds the result exactly."""
    stacked = torch.stack(parts)
    if op in ("SUM", "AVG"):
        total = stacked.sum(0, dtype=stacked.dtype if stacked.dtype.is_complex else torch.float64)
        return total / len(parts) if op == "AVG" else total
    if op == "PRODUCT":
        return stacked.double().prod(0)
    if op in ("MIN", "MAX"):
        return stacked.amin(0) if op == "MIN" else stacked.amax(0)
    result = parts[0]
    for part in parts[1:]:
        result = {"BAND": result & part, "BOR": result | part, "BXOR": result ^ part}[op]
    return result


@on_ranks(1, 2, 3, init=False)
def test_reductions_of_every_type(tmp_path):
    with group(tmp_path) as (rank, ranks):
        kinds = {op: (*INTEGERS, *REALS) for op in ("SUM", "AVG", "MIN", "MAX", "PRODUCT")}
        kinds |= {op: INTEGERS for op in ("BAND", "BOR", "BXOR")}
        kinds["SUM"] += COMPLEX
        kinds["AVG"] += COMPLEX
        for op, dtypes in kinds.items():
            for dtype in dtypes:
                parts = [torch.arange(1, 5).to(dtype) + each for each in range(ranks)]
                want = reduced(op, parts)
                want = (want.trunc() if dtype in INTEGERS and want.is_floating_point() else want).to(dtype)
                tensor = parts[rank].clone()
                dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
                torch.testing.assert_close(tensor, want, msg=lambda text, at=(op, dtype): f"{at}: {text}")
                tensor = parts[rank].clone()
                dist.reduce(tensor, 0, getattr(dist.ReduceOp, op))
                torch.testing.assert_close(tensor, want if rank == 0 else parts[rank])
        flags = torch.tensor([rank == 0, True, False])
        dist.all_reduce(flags, dist.ReduceOp.BAND)
        assert flags.tolist() == [ranks == 1, True, False]
        scaled = torch.full((2,), float(rank))
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(2.5))
        assert scaled.tolist() == [2.5 * sum(range(ranks))] * 2
        with pytest.raises(NotImplementedError, match="and of float32 is not defined"):
            dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND)


@on_ranks(1, 2, 3, init=False)
def test_moves_of_every_type(tmp_path):
    with group(tmp_path) as (rank, ranks):
        # The core lacks the types in `others`; they travel as bytes.
        others = (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)
        for dtype in (*INTEGERS, *REALS, *COMPLEX, *others):
            parts = [torch.tensor([[1, each % 2], [0, 1]]).to(dtype) for each in range(ranks)]

            def same(found, wanted):
                assert found.dtype == wanted.dtype
                assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8)), (found, wanted)

            tensor = parts[rank].clone()
            dist.broadcast(tensor, ranks - 1)
            same(tensor, parts[-1])
            gathered = [torch.zeros_like(tensor) for _ in range(ranks)]
            dist.all_gather(gathered, parts[rank])
            same(torch.cat(gathered), torch.cat(parts))
            whole = torch.zeros_like(torch.cat(parts))
            dist.all_gather_into_tensor(whole, parts[rank])
            same(whole, torch.cat(parts))
            own = torch.zeros_like(tensor)
            dist.scatter(own, parts if rank == 0 else None, src=0)
            same(own, parts[rank])
            listed = [torch.zeros_like(tensor) for _ in range(ranks)] if rank == 0 else None
            dist.gather(parts[rank], listed, dst=0)
            if listed is not None:
                same(torch.cat(listed), torch.cat(parts))
            exchanged = [torch.zeros_like(tensor) for _ in range(ranks)]
            dist.all_to_all(exchanged, [parts[rank]] * ranks)
            same(torch.cat(exchanged), torch.cat(parts))


@on_ranks(1, 2, 3, init=False)
def test_reduce_scatter_all_to_all_and_uneven_sizes(tmp_path):
    with group(tmp_path) as (rank, ranks):
        total = float(sum(range(ranks)))
        share = torch.zeros(2, 2)
        dist.reduce_scatter_tensor(share, torch.arange(4.0 * ranks).view(2 * ranks, 2) + rank)
        want = (torch.arange(4.0 * ranks) * ranks + total).view(ranks, 2, 2)[rank]
        assert torch.equal(share, want)
        stacked = torch.zeros(2, 2)
        dist.reduce_scatter_tensor(stacked, (torch.arange(4.0 * ranks) + rank).view(ranks, 2, 2))
        assert torch.equal(stacked, want)
        uneven = torch.zeros(rank + 1)
        dist.reduce_scatter(uneven, [torch.full((each + 1,), float(each + rank)) for each in range(ranks)])
        assert uneven.tolist() == [rank * ranks + total] * (rank + 1)

        # Rank r sends (r + p) % 3 rows to rank p.
        sent = [(rank + peer) % 3 for peer in range(ranks)]
        rows = torch.arange(2.0 * sum(sent)).view(-1, 2) + 100 * rank
        received = torch.zeros(sum(sent), 2)
        dist.all_to_all_single(received, rows, sent, sent)
        want = []
        for peer in range(ranks):
            theirs = [(peer + each) % 3 for each in range(ranks)]
            start = sum(theirs[:rank])
            table = torch.arange(2.0 * sum(theirs)).view(-1, 2) + 100 * peer
            want.append(table[start : start + theirs[rank]])
        assert torch.equal(received, torch.cat(want))
        even = torch.zeros(2 * ranks)
        dist.all_to_all_single(even, torch.arange(2.0 * ranks) + 10 * rank)
        assert even.tolist() == [2 * rank + 10 * peer + each for peer in range(ranks) for each in (0, 1)]

        # Lists of sizes that differ by rank, which other backends do not support.
        gathered = [torch.zeros(each) for each in range(ranks)]
        dist.all_gather(gathered, torch.full((rank,), float(rank)))
        assert [t.tolist() for t in gathered] == [[float(each)] * each for each in range(ranks)]


@on_ranks(3, init=False)
def test_objects_messages_and_barriers(tmp_path):
    with group(tmp_path) as (rank, ranks):
        objects = [None] * ranks
        dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank})
        assert [each["rank"] for each in objects] == [0, 1, 2]
        broadcast = ["from", rank] if rank == 1 else [None, None]
        dist.broadcast_object_list(broadcast, 1)
        assert broadcast == ["from", 1]
        scattered = [None]
        dist.scatter_object_list(scattered, [f"for {each}" for each in range(ranks)] if rank == 0 else None, 0)
        assert scattered == [f"for {rank}"]
        dist.barrier()
        assert dist.barrier(async_op=True).wait()

        following, before = (rank + 1) % ranks, (rank - 1) % ranks
        for count in (1, 100_000):  # a small message, and one that is sent in pieces
            got = [torch.zeros(count), torch.zeros(count, dtype=torch.complex64)]
            sends = [dist.isend(torch.full((count,), rank + 10.0 * tag), following, tag=tag) for tag in (0, 7)]
            second = torch.zeros(count)
            receives = [dist.irecv(second, before, tag=7), dist.irecv(got[0], before)]
            for work in (*sends, *receives):
                work.wait()
            assert receives[0]._source_rank() == before
            assert (got[0] == before).all() and (second == before + 70).all()
            operations = [
                dist.P2POp(dist.isend, torch.full((count,), 1j * rank), following),
                dist.P2POp(dist.irecv, got[1], before),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            assert (got[1] == 1j * before).all()
        if rank == 0:
            dist.send(torch.arange(6.0).view(2, 3).t(), 1)
        elif rank == 1:
            table = torch.zeros(3, 2).t()  # neither side is contiguous; values are matched by position
            assert dist.recv(table.t(), src=0) == 0
            assert torch.equal(table, torch.arange(6.0).view(2, 3))
        with pytest.raises(NotImplementedError, match="cannot receive from any rank"):
            dist.recv(torch.zeros(1))
        with pytest.raises(ValueError, match="only implemented for GLOO"):
            dist.monitored_barrier()


def test_a_joint_work_waits_for_all_operations_if_one_fails():
    class Work:
        def __init__(self, error=None):
            self.error, self.waits = error, []

        def wait(self):
            self.wait_until(None, "group's")

        def wait_until(self, end, limit_s):
            self.waits.append((end, limit_s))
            if self.error is not None:
                raise self.error

    works = [Work(), Work(ValueError("first")), Work(ValueError("second")), Work()]
    for timeout in ((), (timedelta(seconds=1000),), (timedelta(milliseconds=-1),)):
        with pytest.raises(ValueError, match="first"):
            JointWork(works).wait(*timeout)
    assert [[limit for _, limit in work.waits] for work in works] == [["group's", 1000.0, -0.001]] * 4
    assert len({work.waits[1][0] for work in works}) == 1  # all operations have one deadline


@on_ranks(3, init=False)
def test_coalesced_operations(tmp_path):
    with group(tmp_path) as (rank, ranks):
        total = sum(range(ranks))
        coalescing = dist.distributed_c10d._coalescing_manager
        tensors = [torch.full((each + 1,), float(rank)) for each in range(3)]
        before = dist.group.WORLD._get_sequence_number_for_group()
        with coalescing():
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert all((tensor == total).all() for tensor in tensors)
        gathered = [torch.zeros(ranks * 2) for _ in range(2)]
        with coalescing(async_ops=True) as works:
            for each, tensor in enumerate(gathered):
                dist.all_gather_into_tensor(tensor, torch.full((2,), rank + 10.0 * each))
        works.wait()
        for each, tensor in enumerate(gathered):
            assert tensor.tolist() == [peer + 10.0 * each for peer in range(ranks) for _ in (0, 1)]
        shares = [torch.zeros(2) for _ in range(2)]
        with coalescing():
            for each, tensor in enumerate(shares):
                dist.reduce_scatter_tensor(tensor, torch.arange(2.0 * ranks) + each)
        for each, tensor in enumerate(shares):
            assert tensor.tolist() == [ranks * (2 * rank + at + each) for at in (0, 1)]
        assert dist.group.WORLD._get_sequence_number_for_group() == before + 3

        received = torch.zeros(1)
        with coalescing(device=torch.device("cpu"), async_ops=True) as works:
            dist.isend(torch.ones(1) * rank, (rank + 1) % ranks)
            dist.irecv(received, (rank - 1) % ranks)
        works.wait()
        assert received.item() == (rank - 1) % ranks
        lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(ranks)]
        with pytest.warns(FutureWarning, match="all_gather_coalesced"):
            dist.all_gather_coalesced(lists, [torch.full((2,), 1.0 * rank), torch.full((3,), 0.5 + rank)])
        assert [[t[0].item() for t in each] for each in lists] == [[peer, peer + 0.5] for peer in range(ranks)]


@on_ranks(3, init=False)
def test_works_and_futures(tmp_path):
    with group(tmp_path) as (rank, ranks):
        total = sum(range(ranks))
        # More operations in flight than there are names.
        tensors = [torch.full((each % 3 + 1,), float(rank + each)) for each in range(400)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(works):
            assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
            assert work.wait()  # again
        assert all((tensor == total + each * ranks).all() for each, tensor in enumerate(tensors))
        assert works[0].result()[0] is tensors[0]

        def again(future):
            [tensor] = future.value()
            return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

        tensor = torch.full((2,), float(rank))
        chained = dist.all_reduce(tensor, async_op=True).get_future().then(again)
        assert chained.wait().tolist() == [total * ranks] * 2

        late = torch.zeros(1)
        dist.irecv(late, (rank + 1) % ranks)  # sent later than the barrier below
        dropped = [torch.zeros(ranks) for _ in range(300)]
        for each in dropped:
            dist.all_gather_into_tensor(each, torch.ones(1) * rank, async_op=True)
        finisher = dist.group.WORLD.calls.finisher
        finisher.put, put = lambda finish: None, finisher.put  # simulates a late thread
        parts = [torch.zeros(2) for _ in range(ranks)]
        dist.all_gather(parts, torch.ones(2) * rank, async_op=True)
        gc.collect()
        dist.barrier()
        finisher.put = put
        assert all(each.tolist() == list(range(ranks)) for each in dropped)
        assert [part[1].item() for part in parts] == list(range(ranks))
        dist.send(torch.ones(1), (rank - 1) % ranks)
        while dist.group.WORLD.calls.finish_orphans():
            pass
        assert late.item() == 1.0
        # The results also arrive without another call, and although the group ends.
        other = dist.new_group()
        apart = [[torch.zeros(2) for _ in range(ranks)] for _ in range(3)]
        dist.all_gather(apart[0], torch.ones(2) * rank, async_op=True)
        for each in apart[1:]:
            dist.all_gather(each, torch.ones(2) * rank, group=other, async_op=True)
        dist.destroy_process_group(other)
        limit = time.monotonic() + 30
        while [[part[1].item() for part in each] for each in apart] != [list(range(ranks))] * 3:
            assert time.monotonic() < limit, apart
            time.sleep(0.001)


@on_ranks(3, init=False)
def test_tensors_of_unusual_layouts_and_kinds(tmp_path):
    with group(tmp_path) as (rank, ranks):
        across = torch.arange(6.0).view(2, 3).t()
        dist.all_reduce(across)
        assert torch.equal(across, torch.arange(6.0).view(2, 3).t() * ranks)
        leaf = torch.ones(2, requires_grad=True)
        squared = leaf * leaf
        dist.all_reduce(squared.detach())  # other backends do not count this as a change either
        dist.broadcast(leaf, 0)
        squared.sum().backward()
        assert leaf.grad.tolist() == [2.0, 2.0]
        with torch.inference_mode():
            frozen = torch.ones(2)
            dist.all_reduce(frozen)
            dist.all_gather_into_tensor(torch.zeros(2 * ranks), frozen)
        assert frozen[0] == ranks
        scalar = torch.tensor(1.5)
        dist.all_reduce(scalar)
        empty = torch.zeros(0)
        dist.all_reduce(empty)
        dist.all_gather([torch.zeros(0) for _ in range(ranks)], empty)
        assert scalar.item() == 1.5 * ranks
        indices = torch.tensor([[0, rank], [0, 1]])
        sparse = torch.sparse_coo_tensor(indices, torch.ones(2), (4, 2))
        dist.all_reduce(sparse)
        want = torch.zeros(4, 2)
        want[0, 0] = ranks
        want[:ranks, 1] = 1
        assert torch.equal(sparse.to_dense(), want)
        with pytest.raises(ValueError, match="expanded"):
            dist.all_reduce(torch.ones(1).expand(3))
        with pytest.raises(ValueError, match=r"for a result of torch\.float32"):
            dist.all_gather_into_tensor(torch.zeros(ranks, dtype=torch.int32), torch.ones(1))


@on_ranks(2, init=False)
def test_methods_of_the_process_group(tmp_path):
    with group(tmp_path) as (rank, ranks):
        pg = dist.group.WORLD
        tensor = torch.full((2,), float(rank))
        pg.allreduce(tensor, dist.ReduceOp.MAX).wait()
        assert tensor.tolist() == [ranks - 1.0] * 2
        tensor = torch.full((2,), float(rank))
        pg.allreduce([tensor]).wait()
        pg.broadcast(tensor, 0).wait()
        lists = [torch.zeros(2) for _ in range(ranks)]
        pg.allgather(lists, tensor).wait()
        assert all((each == 1.0).all() for each in lists)
        pg.reduce(tensor, 1, op=dist.ReduceOp.SUM).wait()
        assert tensor.tolist() == [ranks if rank == 1 else 1.0] * 2
        pg.barrier().wait()
        assert (pg.rank(), pg.size(), pg.name(), pg.group_name) == (rank, ranks, "horocache", "0")
        assert dist.get_backend() == "horocache" and dist.get_backend_config() == "cpu:horocache,cuda:horocache"
        with pytest.raises(ValueError, match="takes one tensor"):
            pg.allreduce([tensor, tensor])
