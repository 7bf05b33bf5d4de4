"""Programs in the form of the paper's listings, and the names of MCR-DL's public code."""

from __future__ import annotations

from datetime import timedelta

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import on_ranks

import horocache as hc
import horocache.mcr_dl as mcr_dl


@on_ranks(2, init=False)
def test_listing_1_every_operation_takes_the_papers_arguments_by_position():
    mcr_dl.init(["shm"])
    assert mcr_dl.get_backends() == ["shm"]
    rank, n = mcr_dl.get_rank("shm"), mcr_dl.get_size("shm")
    b, add = "shm", mcr_dl.ReduceOp.SUM

    def t(count=4):
        return torch.arange(float(count)) + rank

    mcr_dl.send(b, t(), 1 - rank, False)
    mcr_dl.recv(b, t(), 1 - rank, False)
    works = [
        mcr_dl.all_to_all_single(b, t(), t(), True),
        mcr_dl.all_to_all(b, [t(), t()], [t(), t()], True),
        mcr_dl.all_reduce(b, t(), add, True),
        mcr_dl.all_gather(b, t(4 * n), t(), True),
        mcr_dl.gather(b, t(4 * n) if rank == 0 else t(), 0, True),
        mcr_dl.scatter(b, t(4 * n) if rank == 0 else t(), 0, True),
        mcr_dl.reduce(b, t(), 0, add, True),
        mcr_dl.reduce_scatter(b, t(4 * n), 0, add, True),
        mcr_dl.bcast(b, t(), 0, True),
        mcr_dl.gatherv(b, t(8) if rank == 0 else t(3 + rank), 0, [3, 4], [0, 4], True),
        mcr_dl.scatterv(b, t(8) if rank == 0 else t(4), 0, [3, 4], [0, 4], True),
        mcr_dl.all_to_allv(b, t(8), t(8), [2, 2], [2, 2], [0, 4], [1, 5], True),
        mcr_dl.all_gatherv(b, t(8), 0, [3, 4], [0, 4], True),
    ]
    mcr_dl.synchronize(["shm"])
    assert all(work.is_completed() for work in works)
    mcr_dl.finalize(["shm"])


@on_ranks(2, init=False)
def test_listing_2_an_exchange_of_signs_and_scales():
    class Compressed:
        def allgather_host(self, comm, sign, rbuf_sign, scale, rbuf_scale):
            comm.all_gather_into_tensor(rbuf_sign, sign)
            comm.all_gather_into_tensor(rbuf_scale, scale)
            return sign, rbuf_sign, scale, rbuf_scale

    mcr_dl.init("auto")
    rank, n = mcr_dl.get_rank(), mcr_dl.get_size()
    sign, scale = torch.full((5,), rank, dtype=torch.uint8), torch.tensor([0.5 * rank])
    out = Compressed().allgather_host(mcr_dl, sign, torch.zeros(n, 5, dtype=torch.uint8), scale, torch.zeros(n, 1))
    assert out[1].tolist() == [[0] * 5, [1] * 5] and out[3].tolist() == [[0.0], [0.5]]
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_listing_3_communication_beside_computation():
    x, y = torch.rand(1, 1), torch.rand(1, 1)
    expected = x + 0
    mcr_dl.init("shm")
    h = mcr_dl.all_reduce("shm", x, async_op=True)
    y = y + y
    mcr_dl.wait("shm")
    result = x + y
    assert h.is_completed() and result.shape == (1, 1)
    other = expected.clone()
    mcr_dl.all_reduce("shm", other)
    assert torch.equal(x, other)
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_listing_4_two_ways_in_flight_and_each_waited_for():
    mcr_dl.init(["shm"])
    rank = mcr_dl.get_rank()
    x, y, z = torch.full((1, 1), rank + 1.0), torch.full((1, 1), rank + 10.0), torch.ones(1, 1)
    h1 = mcr_dl.all_reduce("shm", x, async_op=True)
    h2 = mcr_dl.all_reduce("auto", y, async_op=True)
    z = z + z
    h1.wait()
    h2.wait()
    assert (x + y + z).item() == 3 + 21 + 2
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_the_backend_may_be_left_out():
    mcr_dl.init("shm")
    rank, maximum = mcr_dl.get_rank(), mcr_dl.ReduceOp.MAX
    for call in (
        lambda t: mcr_dl.all_reduce(t, maximum),
        lambda t: mcr_dl.all_reduce(t, op=maximum),
        lambda t: mcr_dl.all_reduce(t, maximum, True).wait(),
        lambda t: mcr_dl.all_reduce(t, maximum, async_op=True).wait(),
        lambda t: mcr_dl.all_reduce(output=t, op=maximum, backend="shm"),
        lambda t: mcr_dl.all_reduce(["shm"], t, maximum, False),
        lambda t: mcr_dl.inference_all_reduce(t, maximum),
        lambda t: mcr_dl.reduce(t, 0, maximum) or mcr_dl.bcast(t, 0),
    ):
        tensor = np.array([float(rank), 5.0 - rank])
        call(tensor)
        assert tensor.tolist() == [1.0, 5.0]
    outputs = [np.zeros(1), np.zeros(1)]
    mcr_dl.all_to_all(outputs, [np.full(1, rank * 2.0), np.full(1, rank * 2.0 + 1)])
    assert [output[0] for output in outputs] == [0.0 + rank, 2.0 + rank]
    mcr_dl.barrier()
    mcr_dl.finalize()


@on_ranks(2, 3, init=False)
def test_the_public_codes_names():
    mcr_dl.init_distributed("shm", timeout=timedelta(seconds=120), config={"comms_logger": {"enabled": True}})
    assert hc.metrics() is not None and mcr_dl.is_available() and mcr_dl.is_initialized()
    rank, n = mcr_dl.get_rank(), mcr_dl.get_world_size()
    assert (hc.rank(), hc.size(), hc.local_rank()) == (rank, n, mcr_dl.get_local_rank())
    group = mcr_dl.new_group([n - 1, 0])
    assert mcr_dl.get_all_ranks_from_group(group) == [0, n - 1] and mcr_dl.get_all_ranks_from_group() == list(range(n))
    assert mcr_dl.get_global_rank(group, 1) == n - 1 and mcr_dl.get_world_size(group) == 2
    with pytest.raises(hc.InvalidArgumentError, match="no rank 2"):
        mcr_dl.get_global_rank(group, 2)
    tensor = torch.full((2,), float(rank))
    mcr_dl.broadcast(tensor, src=n - 1)
    assert tensor.tolist() == [n - 1.0] * 2
    own = torch.full((2,), float(rank))
    for function in (mcr_dl.all_gather_into_tensor, mcr_dl.allgather_fn):
        output = torch.zeros(n, 2)
        function(output, own)
        assert output[:, 0].tolist() == list(range(n))
    for function in (mcr_dl.reduce_scatter_tensor, mcr_dl.reduce_scatter_fn):
        output = torch.zeros(2)
        function(output, torch.ones(n, 2))
        assert output.tolist() == [float(n)] * 2
    several = [torch.full((3,), float(rank)), torch.ones(2, 2, dtype=torch.int32), torch.ones(2, 4)[:, ::2]]
    mcr_dl.all_reduce_coalesced("shm", several)
    assert [each.reshape(-1)[0].item() for each in several] == [sum(range(n)), n, n]
    outputs = [torch.zeros(n * 2), torch.zeros(2, n * 2, dtype=torch.int64)[:, ::2]]
    inputs = [torch.full((2,), float(rank)), torch.full((2,), rank)]
    work = mcr_dl.all_gather_coalesced(outputs, inputs, async_op=True)
    assert work.result()[1] is outputs[1]
    assert outputs[0].tolist() == [float(each) for each in range(n) for _ in range(2)]
    assert outputs[1].reshape(-1).tolist() == [number for number in range(n) for _ in range(2)]
    assert mcr_dl.has_all_gather_into_tensor() and mcr_dl.has_reduce_scatter_tensor()
    assert mcr_dl.has_all_reduce_coalesced() and not mcr_dl.has_coalescing_manager()
    names = {record.op for record in mcr_dl.log_records()}
    assert {"bcast", "all_gather", "reduce_scatter", "all_reduce_coalesced", "all_gather_coalesced"} == names
    mcr_dl.init_distributed("shm", rank=rank, world_size=n)
    with pytest.raises(hc.InvalidArgumentError, match=r"world_size=9, but the launcher has made this process rank"):
        mcr_dl.init_distributed("shm", world_size=9)
    with pytest.raises(hc.UnsupportedError, match="the launcher"):
        mcr_dl.init_distributed("shm", init_method="tcp://localhost:1234")
    mcr_dl.destroy_process_group()
    mcr_dl.init_distributed(dist_init_required=False)
    assert not mcr_dl.is_initialized()


@on_ranks(2, init=False)
def test_compression_is_that_of_horocaches_own_operations():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    tensor = torch.full((3, 4), 1.0 + 2**-12)[:, ::2]
    mcr_dl.all_reduce("shm", tensor, compression=hvd.Compression.fp16)
    assert torch.equal(tensor, torch.full((3, 2), 2.0))
    for _ in range(3):  # without a name, too
        array = np.full(5, 1.0 + 2**-12, np.float32)
        handle = mcr_dl.all_reduce("shm", array, async_op=True, compression=hc.Compression.fp16)
        assert handle.result() is array and array.tolist() == [2.0] * 5
    exact = np.full(5, 1.0 + 2**-12)
    mcr_dl.all_reduce("shm", exact, compression=hc.Compression.none, name="exact")
    assert exact[0] == 2 + 2**-11
    part = np.zeros(3, np.float32)
    source = np.full(6, 1.0 + 2**-12, np.float32)
    mcr_dl.reduce_scatter("shm", part, input=source, compression=hc.Compression.fp16)
    mcr_dl.reduce_scatter("shm", source, compression=hc.Compression.fp16)
    assert part.tolist() == [2.0] * 3 and source.tolist()[:3] == [2.0] * 3 and source[3] != 2.0
    with pytest.raises(hc.MismatchError, match="submitted dtype float16"):
        mcr_dl.all_reduce("shm", part, compression=hc.Compression.fp16 if rank else None)
    mcr_dl.finalize()
