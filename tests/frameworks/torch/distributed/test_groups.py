"""Groups of the backend horocache: their start, end, ranks and devices, beside jobs and process sets of horocache."""

from __future__ import annotations

import gc
import inspect
import time
from pathlib import Path

import horocache.torch as hvd
import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh

from horocache.core import context

from .distributed_job import enter, group, remove_launcher_variables


def total(members=None, value=1.0):
    tensor = torch.tensor([value])
    dist.all_reduce(tensor, group=members)
    return tensor.item()


@pytest.mark.parametrize("launched", [True, False])
@on_ranks(3, init=False)
def test_a_process_group_starts_and_ends_horocache(launched, tmp_path):
    options = {} if launched else dict(zip(("rank", "size"), remove_launcher_variables(), strict=True))
    with group(tmp_path, **options) as (rank, ranks):
        assert (context.rank(), context.size(), context.local_rank()) == (rank, ranks, rank)
        assert total(value=rank) == 3
        knobs = context.current().runtime.knobs()
        assert knobs["stall_shutdown_time_seconds"] == ("30.0", "argument")
        assert (knobs["job_id"][1] == "environment") == launched
    assert not context.is_initialized()


@on_ranks(3, init=False)
def test_repeated_groups_leave_no_descriptors_or_threads(tmp_path):
    def descriptors_and_threads():
        return tuple(len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("fd", "task"))

    rank, ranks = remove_launcher_variables()
    counts = []
    for turn in range(8):  # every way to end the groups; the first two ways twice
        with group(tmp_path, rank=rank, size=ranks, store=str(turn)):
            first = dist.new_group([0, 1])
            every = dist.new_group()
            if rank < 2:
                assert total(first) == 2
            assert dist.all_reduce(torch.ones(1), group=every, async_op=True).get_future().wait()[0] == 3
            if turn % 2:
                dist.destroy_process_group(every)
            if rank < 2 and turn % 3 == 0:
                dist.destroy_process_group(first)
        assert not context.is_initialized()
        gc.collect()
        least = min(counts[1:], default=descriptors_and_threads())
        deadline = time.monotonic() + 5  # seconds for threads to end
        while descriptors_and_threads() > least and time.monotonic() < deadline:
            time.sleep(0.01)
        counts.append(descriptors_and_threads())
    assert counts[-1] == min(counts[1:]), counts


@on_ranks(3)
def test_a_group_uses_a_running_job_and_leaves_it_running(tmp_path):
    with group(tmp_path) as (rank, ranks):
        assert total() == ranks
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == ranks
    with pytest.raises(ValueError, match="rank 0 of 3 is rank 2 of 3 in the job that horocache runs already"):
        enter(tmp_path, rank=ranks - 1 - rank, store="second")
    assert not dist.is_initialized()
    hvd.shutdown()
    if rank == 1:
        hvd.init(rank=0, size=1, local_rank=0, local_size=1, job_id="another")
    with pytest.raises(RuntimeError, match="runs already on rank 1, and not on rank 0"):
        enter(tmp_path, store="third")


@on_ranks(2, init=False)
def test_the_error_names_a_rank_that_does_not_join(tmp_path):
    if remove_launcher_variables()[0] == 1:
        time.sleep(1.5)
        return
    with pytest.raises(RuntimeError, match=r"waited 1 s .* with the ranks \[0, 1\]; of these, \[1\] did not come"):
        enter(tmp_path, rank=0, size=2, seconds=1)


@on_ranks(4, init=False)
def test_groups_have_the_given_ranks(tmp_path):
    with group(tmp_path) as (rank, _):
        mine = [rank // 2 * 2, rank // 2 * 2 + 1]
        assert total(dist.new_group(mine, use_local_synchronization=True), rank) == sum(mine)
        groups = {ids: dist.new_group(list(ids)) for ids in [(0, 1), (1, 3), (2,), (0, 1, 2, 3)]}
        for ids, made in groups.items():
            if rank in ids:
                assert total(made, rank) == sum(ids)
                assert dist.get_rank(made) == ids.index(rank)
            else:
                assert made is dist.GroupMember.NON_GROUP_MEMBER and dist.get_rank(made) == -1
        pair, pairs = dist.new_subgroups(2)
        assert total(pair, rank) == (1 if rank < 2 else 5) and len(pairs) == 2
        dist.barrier()  # groups cannot be created in a job that a rank has left


@pytest.mark.skipif(
    "sort_ranks" not in inspect.signature(dist.new_group).parameters, reason="this torch sorts the ranks of a group"
)
@on_ranks(4, init=False)
def test_groups_keep_the_given_order_of_ranks(tmp_path):
    with group(tmp_path) as (rank, _):
        for order in ([3, 1, 2, 0], [2, 0, 3]):
            made = dist.new_group(order, sort_ranks=False)
            if rank not in order:
                continue
            own, size = dist.get_rank(made), len(order)
            assert order[own] == rank
            gathered = [torch.zeros(each + 1) for each in range(size)]
            dist.all_gather(gathered, torch.full((own + 1,), float(own)), group=made)
            assert [t.tolist() for t in gathered] == [[float(each)] * (each + 1) for each in range(size)]
            whole, share = torch.zeros(size), torch.zeros(1)
            dist.all_gather_into_tensor(whole, torch.tensor([float(own)]), group=made)
            assert whole.tolist() == list(range(size))
            dist.reduce_scatter_tensor(share, torch.arange(float(size)), group=made)
            assert share.item() == own * size
            dist.reduce_scatter(share, [torch.tensor([each + 10.0]) for each in range(size)], group=made)
            assert share.item() == (own + 10) * size
            dist.all_to_all_single(whole, torch.arange(float(size)) + 10 * own, group=made)
            assert whole.tolist() == [own + 10.0 * each for each in range(size)]
            with dist.distributed_c10d._coalescing_manager(group=made):
                dist.all_gather_into_tensor(whole, torch.tensor([float(own)]), group=made)
            assert whole.tolist() == list(range(size))
            parts = [torch.tensor([float(each)]) for each in range(size)] if own == 0 else None
            dist.scatter(share, parts, group=made, group_src=0)
            assert share.item() == own
            listed = [torch.zeros(1) for _ in range(size)] if own == 1 else None
            dist.gather(share, listed, group=made, group_dst=1)
            assert own != 1 or torch.cat(listed).tolist() == list(range(size))
            dist.broadcast(share, group=made, group_src=size - 1)
            assert share.item() == size - 1
            sent = dist.isend(torch.tensor([float(own)]), group=made, group_dst=(own + 1) % size)
            dist.recv(share, group=made, group_src=(own - 1) % size)
            assert sent.wait() and share.item() == (own - 1) % size
        dist.barrier()


@on_ranks(3, init=False)
def test_groups_of_torch_and_process_sets_of_horocache_coexist(tmp_path):
    hvd.init(process_sets=[[0, 1]])
    with group(tmp_path) as (rank, ranks):
        first = dist.new_group([1, 2])
        own = hvd.add_process_set([0, 2])
        second = dist.new_group([0, 1])  # the ranks of an existing set
        numbers = [made.process_set_id for made in hvd.process_sets()]
        assert len(set(numbers)) == len(numbers)
        for made, ids in ((first, (1, 2)), (second, (0, 1))):
            assert rank not in ids or total(made) == 2
        if own.included():
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=own).item() == 2
        third = hvd.add_process_set([0])
        assert third.process_set_id > max(numbers)
        hvd.remove_process_set(third)
        dist.destroy_process_group(first)
        dist.barrier()
        if rank > 0:
            with pytest.raises(ValueError, match="is not initialized in the world group map"):
                total(first)
    assert [made.ranks for made in hvd.process_sets()[1:]] == [[0, 1], [0, 2]]
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == ranks


@on_ranks(3, init=False)
def test_groups_beside_a_world_of_another_backend(tmp_path):
    with group(tmp_path, backend="gloo") as (rank, _):
        if rank < 2:
            with pytest.raises(
                NotImplementedError, match="horocache does not run on rank 0: it is started by all ranks"
            ):
                dist.new_group([0, 1], backend="horocache", use_local_synchronization=True)
        every = dist.new_group(backend="horocache")
        pair = dist.new_group([0, 1], backend="horocache")
        assert total(every, rank) == total(value=rank) == 3
        assert rank > 1 or total(pair) == 2
        assert dist.get_backend(every) == "horocache" and dist.get_backend() == "gloo"
        if pair is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(pair)
        dist.barrier()
        assert context.is_initialized()
        dist.destroy_process_group(every)
        assert not context.is_initialized()


@pytest.mark.parametrize("backend", ["cpu:horocache", "cpu:horocache,cuda:gloo", "cuda:gloo,cpu:horocache"])
@on_ranks(2, init=False)
def test_backends_by_device(backend, tmp_path):
    with group(tmp_path, backend=backend) as (rank, ranks):
        pg = dist.group.WORLD
        assert total(value=rank) == 1 and dist.get_backend_config() == backend
        pair = dist.new_group([0, 1])
        assert total(pair) == 2
        objects = [None] * ranks
        dist.all_gather_object(objects, rank)
        assert objects == [0, 1]
        names = [device.type for device in pg._device_types]
        assert pg._get_backend(torch.device("cpu")) is pg and not pg.supports_splitting
        with pytest.raises(NotImplementedError, match=r'tensors on meta; .* Name one .*meta:NAME"'):
            dist.all_reduce(torch.ones(1, device="meta"))
        if "gloo" in backend:
            assert names == ["cpu", "cuda"]
            made = pg._get_backend(torch.device("cuda"))
            assert isinstance(made, dist.ProcessGroupGloo) and made is pg._get_backend(torch.device("cuda:0"))
            # The backend of CUDA tensors, called with a CPU tensor, which every machine has.
            tensor = torch.ones(2)
            made.allreduce([tensor]).wait()
            assert tensor.tolist() == [2.0, 2.0]
        else:
            assert names == ["cpu"]


@on_ranks(4, init=False)
def test_device_meshes(tmp_path):
    with group(tmp_path) as (rank, _):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        assert total(mesh.get_group("rows"), rank) == (2 if rank % 2 == 0 else 4)
        assert total(mesh["columns"].get_group(), rank) == (1 if rank < 2 else 5)
        assert total(mesh._flatten("all").get_group()) == 4
        assert {dist.get_backend(each) for each in mesh.get_all_groups()} == {"horocache"}
