"""SyncBatchNorm computes the result of one process with the whole batch."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

CLOSE = {"rtol": 1e-6, "atol": 1e-8}


def whole_batch(sizes, shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    # The mean is large: a variance computed from sums of squares would lose its digits.
    return (torch.randn((sum(sizes), *shape), generator=generator, dtype=torch.float64) * 3 + 1000).to(dtype)


def train(layer, batch):
    """Compute two steps; return the output of the second one."""
    for step in range(2):
        batch.grad = None
        layer.zero_grad()
        output = layer(batch)
        (output**3 * (step + 1)).sum().backward()
    return output.detach()


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 3, 2)])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}], ids=str
)
@on_ranks(3)
def test_sync_batch_norm_equals_batch_norm_over_the_whole_batch(shape, options):
    sizes = [3, 0, 2]
    start = sum(sizes[: hvd.rank()])
    mine = slice(start, start + sizes[hvd.rank()])
    classes = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm2d}
    batch = whole_batch(sizes, shape).requires_grad_()
    layer = classes[len(shape)](4, **options).double()
    output = train(layer, batch)

    part = whole_batch(sizes, shape)[mine].requires_grad_()
    synchronized = hvd.SyncBatchNorm(4, **options).double()
    torch.testing.assert_close(train(synchronized, part), output[mine], **CLOSE)
    torch.testing.assert_close(part.grad, batch.grad[mine], **CLOSE)
    for ours, param in zip(synchronized.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(hvd.allreduce(ours.grad, op=hvd.Sum), param.grad, **CLOSE)
    layer.eval()
    synchronized.eval()
    torch.testing.assert_close(synchronized.state_dict(), layer.state_dict(), **CLOSE)
    torch.testing.assert_close(synchronized(part).detach(), layer(batch)[mine].detach(), **CLOSE)


@on_ranks(3)
def test_gradients_add_up_over_several_passes():
    batch = whole_batch([2] * 3, (4,))
    synchronized = hvd.SyncBatchNorm(4).double()
    plain = torch.optim.SGD(synchronized.parameters(), lr=0.5)
    distributed = hvd.DistributedOptimizer(plain, synchronized.named_parameters(), backward_passes_per_step=2)
    layer = torch.nn.BatchNorm1d(4).double()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    for _ in range(2):
        distributed.zero_grad(set_to_none=False)
        optimizer.zero_grad()
        for _ in range(2):
            (synchronized(batch[hvd.rank() * 2 :][:2]) ** 3).sum().backward()
            ((layer(batch) ** 3).sum() / 3).backward()
        distributed.step()
        optimizer.step()
    for ours, param in zip(synchronized.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), param.detach(), **CLOSE)


@on_ranks(2, init=False)
def test_half_precision_sets_of_one_rank_and_invalid_input():
    hvd.init(process_sets=[[0]])
    layer = hvd.SyncBatchNorm(4)
    batch = whole_batch([4], (4, 3), torch.bfloat16)[hvd.rank() * 2 :][:2].requires_grad_()
    output = layer(batch)
    output.sum().backward()
    assert (output.dtype, batch.grad.dtype, layer.weight.grad.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    with pytest.raises(ValueError, match="at least 2D"):
        layer(torch.ones(4))
    alone = hvd.SyncBatchNorm(4, process_set=hvd.process_sets()[1])
    if hvd.rank() == 0:
        plain = torch.nn.BatchNorm1d(4)
        torch.testing.assert_close(alone(batch.float()).detach(), plain(batch.float()).detach())


@on_ranks(2)
def test_a_second_derivative_is_an_error():
    batch = torch.randn(3, 4, requires_grad=True)
    (first,) = torch.autograd.grad(hvd.SyncBatchNorm(4)(batch).pow(3).sum(), batch, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.pow(2).sum().backward()
