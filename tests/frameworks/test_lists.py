"""Many tensors in one call: reduced one by one, or as a repeated group."""

from __future__ import annotations

import signal
import time

import horocache.torch as hvd
import numpy as np
import pytest
import torch
from ranks import calling_thread_is_in, on_ranks, signal_in_a_wait

import horocache as hc
from horocache.errors import DuplicateNameError, InvalidArgumentError, MismatchError

SIZES = [1, 5, 3000, 0, 40]


@on_ranks(2)
def test_each_tensor_of_a_list_is_reduced_under_its_own_name():
    for names in (None, ["a", "b", b"c", "d", "e"]):
        for step in range(3):
            tensors = [torch.full((n,), float(i + step)) for i, n in enumerate(SIZES)]
            arrays = [tensor.numpy().copy() for tensor in tensors]
            # Ranks may submit named tensors in different orders and by different calls.
            order = range(len(SIZES)) if names is None or hc.rank() == 0 else reversed(range(len(SIZES)))
            order = list(order)
            own = None if names is None else [names[i] for i in order]
            handles = hvd.allreduce_many_async_([tensors[i] for i in order], names=own, op=hvd.Sum)
            assert len(handles) == len(SIZES)
            results = hvd.synchronize(handles)
            assert all(result is tensors[i] for result, i in zip(results, order, strict=True))
            hc.synchronize(tuple(hc.allreduce_many_async_(arrays, names=names, op=hc.Sum)))
            for i, n in enumerate(SIZES):
                assert torch.equal(tensors[i], torch.full((n,), float(i + step) * hc.size()))
                np.testing.assert_array_equal(arrays[i], tensors[i].numpy())


@on_ranks(2)
def test_lists_may_mix_plain_tensors_with_views_parameters_and_complex():
    base = torch.arange(12.0).reshape(3, 4)
    negated = torch._neg_view(torch.ones(4))
    parameter = torch.nn.Parameter(torch.ones(2))
    tensors = [torch.ones(4), base.clone().t(), negated, parameter, torch.ones(3) * 1j, torch.ones(5)]
    before = [tensor.detach().clone() for tensor in tensors]
    hvd.synchronize(hvd.allreduce_many_async_(tensors, op=hvd.Sum))
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor.detach(), old * hvd.size())
    for _ in range(3):
        hvd.grouped_allreduce_(tensors, name="mixed", op=hvd.Sum)
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor.detach(), old * hvd.size() ** 4)


@on_ranks(2)
def test_autograd_detects_tensors_that_lists_overwrite():
    for start in (
        lambda tensors: hvd.allreduce_many_async_(tensors, op=hvd.Sum),
        lambda tensors: hvd.grouped_allreduce_async_(tensors, name="g", op=hvd.Sum),
    ):
        saved = torch.ones(3)
        weight = torch.ones(3, requires_grad=True)
        product = (weight * saved).sum()
        hvd.synchronize(start([saved, torch.ones(2)]))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


@on_ranks(2)
def test_errors_with_lists_carry_the_handles_in_flight():
    x, y = torch.ones(3), torch.ones(4)
    for tensors, names, text in (
        ([], None, "at least one tensor"),
        (x, None, "list"),
        ([x, y], ["a"], "2 tensors were given, with 1 names"),
        ([x, "y"], ["a", "b"], "torch.Tensor"),
    ):
        with pytest.raises(InvalidArgumentError, match=text) as caught:
            hvd.allreduce_many_async_(tensors, names=names)
        hvd.synchronize(getattr(caught.value, "handles", []))
    if hvd.rank() == 0:  # rank 0 submits first, so that none of its operations is complete yet
        with pytest.raises(DuplicateNameError) as caught:
            hvd.allreduce_many_async_([x, y, x.clone()], names=["a", "b", "a"], op=hvd.Sum)
        handles = caught.value.handles
    hvd.barrier()
    if hvd.rank() == 1:
        handles = hvd.allreduce_many_async_([x, y], names=["a", "b"], op=hvd.Sum)
    assert len(handles) == 2
    assert hvd.synchronize(handles) == [x, y]
    with pytest.raises(InvalidArgumentError, match="priority"):
        hvd.allreduce_many_async_([x], priority="high")
    with pytest.raises(InvalidArgumentError, match="prescale_factor"):
        hvd.grouped_allreduce_([x], prescale_factor="two")
    hvd.barrier()


@on_ranks(2)
def test_a_wait_for_a_list_finishes_all_handles_before_it_raises():
    tensors = [torch.ones(3 + (hvd.rank() if i == 1 else 0)) for i in range(4)]
    handles = hvd.allreduce_many_async_(tensors, names=list("abcd"), op=hvd.Sum)
    with pytest.raises(MismatchError, match=r"allreduce\.b"):
        hvd.synchronize(handles)
    with pytest.raises(ValueError, match=f"Handle {handles[0]} was not created or has been cleared"):
        hvd.synchronize(handles)
    assert torch.equal(tensors[3], torch.full((3,), 2.0))
    late = hvd.allreduce_async_(torch.ones(1), name="late") if hvd.rank() == 0 else None
    if late is not None:
        with pytest.raises(TimeoutError):
            hvd.synchronize([late], timeout=0.05)
    hvd.barrier()
    if late is None:
        late = hvd.allreduce_async_(torch.ones(1), name="late")
    hvd.synchronize([late], timeout=60)


class StoppedError(Exception):
    """Raised by a signal handler."""


@pytest.mark.parametrize("stop", ["timeout", "interrupt"])
@on_ranks(2)
def test_an_interrupted_wait_for_a_list_can_be_repeated(stop, tmp_path):
    stopped = tmp_path / "stopped"

    def interrupt(number, frame):
        raise StoppedError

    tensors = [torch.ones(3) for _ in range(4)]
    count = 2 if hvd.rank() else 4  # rank 1 submits the last two later
    handles = hvd.allreduce_many_async_(tensors[:count], names=list("abcd")[:count], op=hvd.Sum)
    if hvd.rank() == 0:
        signal.signal(signal.SIGUSR1, interrupt)
        while not (hvd.poll(handles[0]) and hvd.poll(handles[1])):
            time.sleep(0.001)
        with pytest.raises(StoppedError if stop == "interrupt" else TimeoutError):
            if stop == "interrupt":
                signal_in_a_wait(calling_thread_is_in("synchronize"), signal.SIGUSR1)
            hvd.synchronize(handles, timeout=60 if stop == "interrupt" else 0.2)
        assert [tensor._version for tensor in tensors] == [1, 1, 0, 0]
        stopped.touch()
        assert all(each is tensor for each, tensor in zip(hvd.synchronize(handles), tensors, strict=True))
    else:
        while not stopped.exists():
            time.sleep(0.01)
        handles += hvd.allreduce_many_async_(tensors[2:], names=["c", "d"], op=hvd.Sum)
        hvd.synchronize(handles)
    assert all(torch.equal(tensor, torch.full((3,), 2.0)) for tensor in tensors)


@on_ranks(3)
def test_a_repeated_group_follows_changes_of_its_tensors_and_options():
    def check(tensors, **options):
        scale = options.get("prescale_factor", 1.0)
        before = [tensor.clone() for tensor in tensors]
        hvd.grouped_allreduce_(tensors, name="g", **options)
        factor = 1 if options["op"] == hvd.Average else hvd.size()
        for tensor, old in zip(tensors, before, strict=True):
            assert torch.equal(tensor, old * scale * factor)

    kept = [torch.full((n,), 2.0 + n) for n in SIZES]
    for _ in range(3):
        check(kept, op=hvd.Sum)
    check(kept, op=hvd.Average)
    check(kept, op=hvd.Sum, prescale_factor=0.5)
    check([tensor.double() for tensor in kept], op=hvd.Sum)
    check(kept[:3], op=hvd.Sum)
    check([tensor.reshape(1, -1) for tensor in kept], op=hvd.Sum)
    for _ in range(2):
        check([torch.full((n,), 3.0) for n in SIZES], op=hvd.Sum)  # tensors in other memory
    check([*kept[:2], torch.arange(6.0).reshape(2, 3).t()], op=hvd.Sum)  # one member must be copied
    check(kept, op=hvd.Sum)
    sharing = torch.ones(4)
    with pytest.raises(ValueError, match="share memory"):
        hvd.grouped_allreduce_([sharing, sharing[:2], *kept[2:]], name="g", op=hvd.Sum)
    check(kept, op=hvd.Sum)
    ends = hvd.add_process_set([0, 2])
    for _ in range(2):
        if hvd.rank() != 1:
            hvd.grouped_allreduce_(kept, name="g", op=hvd.Max, process_set=ends)
        check(kept, op=hvd.Sum)


@on_ranks(2, 3)
def test_many_small_tensors_have_the_same_bits_as_one_large_tensor():
    generator = torch.Generator().manual_seed(7 + hvd.rank())
    for count in (1000, 40_000):  # small: each rank reduces everything; large: each rank reduces a slice
        flat = torch.randn(count * 3, generator=generator)
        parts = list(flat.clone().split(3))
        hvd.allreduce_(flat, name="flat", op=hvd.Average)
        for _ in range(2):
            again = [part.clone() for part in parts]
            hvd.grouped_allreduce_(again, name=f"parts {count}", op=hvd.Average)
            assert torch.equal(torch.cat(again), flat)
