"""Gradients in bucket views, which are in shared memory and are reduced in place."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import os
import tempfile
from pathlib import Path

import horocache.torch as hvd
import pytest
import torch
from horocache.torch.optimizer import bucket_views, gradient_queue
from ranks import on_ranks

from horocache.errors import InvalidArgumentError, UnsupportedError

from ..small_model import batch, make_model


def views(optimizer):
    return [gradient.bucket_view for gradient in optimizer.debug_state().gradients]


def train(steps, set_to_none, bucket_view, num_groups, passes=1, clips=False, dtype=None):
    """Train for some steps; return the parameters, the bytes copied in the last step, and the optimizer.

    The bytes are two numbers: copied in and out of buffers, and copied from gradients into their bucket views.
    """
    model = make_model() if dtype is None else make_model().to(dtype)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        model.named_parameters(),
        num_groups=num_groups,
        backward_passes_per_step=passes,
        gradient_as_bucket_view=bucket_view,
    )
    copied = (0, 0)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        before = hvd.metrics()
        for part in range(passes):
            x, y = batch(passes * step + part, hvd.rank())
            torch.nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)), y).backward()
        if clips:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        after = hvd.metrics()
        copied = tuple(after[name] - before[name] for name in ("bytes_copied", "bytes_into_views"))
    return [p.detach().clone() for p in model.parameters()], copied, optimizer


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("num_groups", [0, 1, 3])
@on_ranks(2, 3, init=False)
def test_bucket_views_keep_the_bits_of_the_parameters_and_avoid_copies(num_groups, set_to_none):
    hvd.init(oneshot_max=0, inline_max=0)  # these small gradients take the path of large ones
    for options in ({}, {"passes": 2}, {"clips": True}, {"dtype": torch.float32}):
        with_views, copied, optimizer = train(4, set_to_none, "auto", num_groups, **options)
        without, copied_without, _ = train(4, set_to_none, False, num_groups, **options)
        for a, b in zip(with_views, without, strict=True):
            assert torch.equal(a, b), options
        # A gradient that autograd allocates is copied into its bucket view once; one that autograd accumulates in place
        # is not copied. The byte per parameter that reports unused parameters may be copied in and out.
        size = sum(p.nbytes for p in with_views)
        assert copied[0] <= 2 * len(with_views), (options, copied)
        assert copied[1] == (size if set_to_none else 0), (options, copied)
        assert copied_without[0] > 0
        assert copied_without[1] == 0
        for gradient in optimizer.debug_state().gradients:
            assert gradient.param.grad is gradient.bucket_view and hvd.is_shared(gradient.bucket_view)


@on_ranks(2)
def test_gradients_of_one_type_are_adjacent_in_memory():
    _, _, optimizer = train(1, True, True, 0)
    for before, after in itertools.pairwise(sorted(views(optimizer), key=torch.Tensor.data_ptr)):
        assert before.data_ptr() + before.nbytes == after.data_ptr()


@on_ranks(3, init=False)
def test_channels_last_gradients_keep_their_layout_and_bits():
    hvd.init(oneshot_max=0)

    def steps(bucket_view):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, (1, 3)), torch.nn.Conv2d(4, 1, 1))
        model = model.to(memory_format=torch.channels_last)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            num_groups=2,
            gradient_as_bucket_view=bucket_view,
        )
        for step in range(3):
            optimizer.zero_grad()
            torch.manual_seed(10 * step + hvd.rank())
            x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
            model(x).square().mean().backward()
            optimizer.step()
        return model, optimizer

    model, optimizer = steps("auto")
    for p in model.parameters():
        strides = [s for s, n in zip(p.grad.stride(), p.shape, strict=True) if n > 1]
        assert strides == [s for s, n in zip(p.stride(), p.shape, strict=True) if n > 1]
    assert all(each.param.grad is each.bucket_view for each in optimizer.debug_state().gradients)
    without, _ = steps(False)
    for a, b in zip(model.parameters(), without.parameters(), strict=True):
        assert torch.equal(a, b)


@on_ranks(2)
def test_detach_requires_grad_and_zero_work_in_place_on_bucket_views():
    _, _, optimizer = train(2, True, "auto", 2)
    for view in views(optimizer):
        view.detach_()
        view.requires_grad_(False)
        view.zero_()
        assert not view._is_view()
    optimizer.zero_grad(set_to_none=False)
    assert all(each.param.grad is each.bucket_view for each in optimizer.debug_state().gradients)


@on_ranks(2, init=False)
def test_parameters_of_all_kinds_have_the_same_bits_without_views():
    hvd.init(oneshot_max=0)

    def steps(bucket_view):
        torch.manual_seed(0)
        shared = torch.nn.Parameter(torch.ones(4))
        half = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        double = torch.nn.Parameter(torch.ones(3, 4, dtype=torch.float64))
        unused = torch.nn.Parameter(torch.ones(6))
        frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        empty = torch.nn.Parameter(torch.ones(0, 3))
        params = [shared, half, double, unused, frozen, empty]
        named = [(f"p{i}", p) for i, p in enumerate(params)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=0.5), named, num_groups=2, op=hvd.Sum, gradient_as_bucket_view=bucket_view
        )
        for step in range(4):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss = (shared * shared * 2).sum() + (half.float() * 3).sum() + (double * shared).sum() + empty.sum()
            if step == 2:
                loss = loss + frozen.sum() * 0
                frozen.requires_grad_(True)
            (loss * (hvd.rank() + 1)).backward()
            optimizer.step()
        assert unused.grad is None and unused.tolist() == [1.0] * 6
        return params

    for a, b in zip(steps("auto"), steps(False), strict=True):
        assert torch.equal(a, b)


@on_ranks(2)
def test_copies_and_saved_gradients_are_in_private_memory():
    _, _, optimizer = train(2, False, "auto", 1)
    grads = [gradient.param.grad for gradient in optimizer.debug_state().gradients]
    copies = copy.deepcopy(grads)
    file = io.BytesIO()
    torch.save(grads, file)
    file.seek(0)
    for grad, copied, loaded in zip(grads, copies, torch.load(file), strict=True):
        assert torch.equal(grad, copied) and torch.equal(grad, loaded)
        assert not hvd.is_shared(copied) and not hvd.is_shared(loaded)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)


def resident_shared_kib():
    """The resident KiB of this process in horocache's shared memory."""
    with Path("/proc/self/smaps").open() as maps:
        total, is_horocache = 0, False
        for line in maps:
            if "-" in line.split()[0] and ":" not in line.split()[0]:
                is_horocache = "memfd:horocache" in line
            elif is_horocache and line.startswith("Rss:"):
                total += int(line.split()[1])
    return total


@on_ranks(2)
def test_gradients_stay_readable_after_shutdown_and_free_their_memory():
    model = torch.nn.Linear(1000, 1000)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Sum
    )
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    grad = model.weight.grad
    hvd.shutdown()
    assert grad.sum().item() == 2e6
    with_view = resident_shared_kib()
    assert with_view >= 4_000_000 // 1024
    del grad, optimizer
    model.zero_grad()
    gc.collect()
    assert resident_shared_kib() < with_view - 3900


@on_ranks(2)
def test_invalid_values_and_bucket_views_with_a_compression_raise():
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidArgumentError, match="'yes'; it is True, False or 'auto'"):
        hvd.DistributedOptimizer(sgd, model.named_parameters(), gradient_as_bucket_view="yes")
    with pytest.raises(UnsupportedError, match="compressed gradients are copies"):
        hvd.DistributedOptimizer(
            sgd, model.named_parameters(), compression=hvd.Compression.fp16, gradient_as_bucket_view=True
        )
    hvd.DistributedOptimizer(sgd, model.named_parameters(), compression=hvd.Compression.fp16)


@on_ranks(2)
def test_gradients_stay_private_if_torch_cannot_count_the_users_of_memory():
    gradient_queue.count_users = bucket_views.count_users = None
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedError, match="needs a torch that counts the tensors"):
        hvd.DistributedOptimizer(sgd, model.named_parameters(), gradient_as_bucket_view=True)
    _, _, optimizer = train(2, False, "auto", 2)
    assert not any(hvd.is_shared(gradient.param.grad) for gradient in optimizer.debug_state().gradients)


def test_a_torch_without_dlpacks_exchange_table_has_no_bucket_views():
    class Tensor:
        pass

    assert gradient_queue.users_counter(Tensor) is None and gradient_queue.users_counter(torch.Tensor) is not None


@on_ranks(2, init=False)
def test_without_shared_memory_gradients_are_private_and_ranks_warn_once():
    with tempfile.TemporaryFile() as stderr:
        os.dup2(stderr.fileno(), 2)
        hvd.init(region_bytes=2 << 20)
        model = torch.nn.Linear(1000, 1000)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Sum, num_groups=1
        )
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 1000)).sum().backward()
            optimizer.step()
            assert model.weight.grad.sum().item() == 2e6 and not hvd.is_shared(model.weight.grad)
        assert not hvd.is_shared(hvd.empty(3 << 20))
        assert hvd.is_shared(hvd.empty(1000))
        stderr.seek(0)
        text = stderr.read().decode()
    assert text.count("there is no shared memory left for a tensor of 4004000 bytes") == 1, text
    assert text.count("no shared memory left") == 1, text
