"""M2, M3, M4: every operation x element type x shape gives NumPy's result, on every backend of one host."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
import horocache.mcr_dl as mcr_dl
from horocache.collectives.numpy import NumpyAdapter
from horocache.mcr_dl import ReduceOp
from horocache.testing import run_ranks

from . import cases


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_m2_every_operation_conforms_in_shared_memory(ranks, kind):
    run_ranks(cases.run, ranks, args=(["shm"], [kind]), timeout=110)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_m2_every_operation_conforms_on_one_rank(kind):
    run_ranks(cases.run, 1, args=(["loopback", "shm"], [kind]), timeout=110)


def test_m2_every_operation_conforms_through_the_c_abi():
    run_ranks(cases.run, 3, args=(["shm"], ["numpy"]), timeout=110, knobs={"binding": "cffi"})


def test_m2_every_operation_conforms_where_the_core_allocates_results_as_for_cuda_tensors():
    run_ranks(cases.run, 3, args=(["shm"], ["numpy", "torch"], False), timeout=110)


@on_ranks(3, init=False)
def test_m2_what_a_backend_cannot_do_is_an_error_before_data_move():
    mcr_dl.init("shm")
    before = hc.metrics()
    for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        with pytest.raises(hc.UnsupportedError, match=r"float32 is not defined; it is for integers and bool"):
            mcr_dl.all_reduce("shm", np.ones(3, np.float32), op)
    for bad in (np.array([object()]), np.ma.masked_array([1.0]), np.zeros(2, "M8[s]")):
        with pytest.raises(hc.UnsupportedError, match=r"dtype|masked"):
            mcr_dl.all_reduce("shm", bad)
    assert hc.metrics().since(before)["bytes_copied"] == 0
    mcr_dl.finalize()


@on_ranks(3, init=False)
def test_m3_parts_and_sizes_that_do_not_fit_are_errors_before_anything_is_sent():
    mcr_dl.init("shm")
    rank, ones = mcr_dl.get_rank(), np.ones
    calls = {
        "the output of all_gather has 7 elements, which cannot be divided": lambda: mcr_dl.all_gather(ones(7), ones(2)),
        "the input of all_gather has 3 elements; it needs 2": lambda: mcr_dl.all_gather(ones(6), ones(3)),
        "needs one tensor for each of 3 ranks; it has 2": lambda: mcr_dl.all_gather([ones(1)] * 2, ones(1)),
        "is of float32, its output of float64": lambda: mcr_dl.all_gather(ones(6), ones(2, np.float32)),
        "has shape (3,), its output (2,)": lambda: mcr_dl.all_reduce(ones(2), input=ones(3)),
        "the parts of ranks 0 and 1 overlap": lambda: mcr_dl.all_gatherv(ones(9), 0, [2, 2, 2], [0, 1, 4]),
        "the part of rank 2 has 2 elements from element 8, beyond the 9": lambda: mcr_dl.all_gatherv(
            ones(9), 0, [2, 2, 2], [0, 2, 8]
        ),
        "needs rcounts with one number from 0 on for each of 3 ranks, not [1, 2]": lambda: mcr_dl.all_gatherv(
            ones(9), 0, [1, 2]
        ),
        "not [1, -2, 3]": lambda: mcr_dl.reduce_scatterv(ones(9), [1, -2, 3]),
        "the input of reduce_scatter has 5 elements; it needs 6": lambda: mcr_dl.reduce_scatter(ones(2), input=ones(5)),
        "the input of scatter has 5 elements; it needs 6": lambda: mcr_dl.scatter(ones(2), rank, input=ones(5)),
        "invalid root rank 3": lambda: mcr_dl.bcast(ones(2), 3),
        "must add up to 4": lambda: mcr_dl.all_to_all_single(ones(3), ones(4), input_split_sizes=[1, 1, 1]),
        "async_op must be True or False; it is None": lambda: mcr_dl.all_reduce("shm", ones(2), ReduceOp.SUM, None),
        "op='sum' is not a reduce operation; these are: AVG, SUM": lambda: mcr_dl.all_reduce(ones(2), "sum"),
        "takes torch tensors and NumPy arrays, not builtins.list": lambda: mcr_dl.all_reduce("shm", [1.0]),
        "a tag must be": lambda: mcr_dl.isend("shm", ones(1), 0, tag=2**31 - 1),
    }
    submitted = hc.metrics()["cache_misses"]
    for text, call in calls.items():
        with pytest.raises(hc.InvalidArgumentError) as raised:
            call()
        assert text in str(raised.value), f"{text!r} is not in {raised.value}"
    assert hc.metrics()["cache_misses"] == submitted
    tensor = ones(2)
    mcr_dl.all_reduce("shm", tensor)  # calls that failed on one rank alone do not count
    assert tensor.tolist() == [3.0, 3.0]
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m3_a_rank_that_expects_another_part_of_a_scatterv_is_told():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    for expected in (2, 4):  # the root sends 3
        mine = np.zeros(5)
        counts = [1, 3] if rank == 0 else [1, expected]
        if rank == 0:
            mcr_dl.scatterv("shm", mine, 0, counts, input=np.ones(4))
            assert mine.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
        else:
            with pytest.raises(hc.InvalidArgumentError, match=f"the result has 24 bytes, and .* has {8 * expected}"):
                mcr_dl.scatterv("shm", mine, 0, counts)
    tensor = np.ones(1)
    mcr_dl.all_reduce("shm", tensor)
    assert tensor[0] == 2
    mcr_dl.finalize()


@on_ranks(3, init=False)
def test_m4_an_average_divides_by_the_ranks_and_rounds_integers_towards_zero():
    mcr_dl.init("shm")
    rank = mcr_dl.get_rank()
    mean = np.array([rank, 1.0])
    mcr_dl.all_reduce("shm", mean, ReduceOp.AVG)
    assert mean.tolist() == [1.0, 1.0]
    whole = np.array([5 + rank * rank, -5 - rank * rank, 4], np.int32)  # sums 20, -20, 12
    mcr_dl.all_reduce("shm", whole, ReduceOp.AVG)
    assert whole.tolist() == [6, -6, 4]
    import torch.distributed as dist

    for theirs, ours in ((dist.ReduceOp.MAX, 2.0), (dist.ReduceOp.SUM, 3.0), (hc.Min, 0.0)):
        tensor = np.array([float(rank)])
        mcr_dl.all_reduce("shm", tensor, theirs)
        assert tensor.tolist() == [ours]
    with pytest.raises(hc.UnsupportedError, match="Adasum"):
        mcr_dl.all_reduce("shm", mean, hc.Adasum)
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m2_results_go_into_the_callers_memory_without_a_copy():
    mcr_dl.init("shm")
    rank, big = mcr_dl.get_rank(), 1 << 18
    output, part = np.zeros(2 * big, np.float32), np.full(big, rank + 1, np.float32)
    source = np.empty_like(output)
    with pytest.MonkeyPatch.context() as patch:
        for copies in ("from_result", "copy_into"):
            patch.delattr(NumpyAdapter, copies)
        mcr_dl.all_gather("shm", output, part)
        assert (output[0], output[-1]) == (1, 2)
        source[...] = output
        mcr_dl.all_to_all_single("shm", output, source)
        assert (output[0], output[-1]) == (rank + 1, rank + 1)
        mcr_dl.reduce_scatter("shm", part, input=output)
        assert (part[0], part[-1]) == (3, 3)
        mcr_dl.all_gatherv("shm", source, None, [big, big - 1], [1, big + 1], input=part[: big - rank])
        mcr_dl.scatter("shm", part, 0, input=source)
        mcr_dl.gather("shm", output if rank == 0 else None, 0, input=part)
        assert part[-1] == 3 and source[0] == 1
    # An output that shares memory with the input: its own part of the result, as PyTorch's programs pass it.
    output[rank * big : (rank + 1) * big] = rank + 5
    mcr_dl.all_gather("shm", output, output[rank * big : (rank + 1) * big])
    assert output[0] == 5 and output[-1] == 6
    mcr_dl.all_to_all_single("shm", output, output)
    mcr_dl.finalize()


@on_ranks(2, init=False)
def test_m2_autograd_and_views_of_torch_see_what_an_operation_has_written():
    import torch

    mcr_dl.init("shm")
    weight = torch.ones(3, requires_grad=True)
    saved = torch.full((3,), 2.0)
    loss = (weight * saved).sum()
    mcr_dl.all_reduce("shm", saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.no_grad():
        mcr_dl.bcast("shm", weight, 0)
    gathered = torch.zeros(3, 2).t()  # not contiguous
    mcr_dl.all_gather("shm", gathered, torch.arange(3.0) + mcr_dl.get_rank())
    assert gathered.tolist() == [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]
    mcr_dl.finalize()
