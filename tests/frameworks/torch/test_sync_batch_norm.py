"""SyncBatchNorm computes the result of one process with the whole batch."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks as run


def whole_batch(sizes, shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    # The mean is large: a variance computed from sums of squares would lose its digits.
    return (torch.randn((sum(sizes), *shape), generator=generator, dtype=torch.float64) * 3 + 1000).to(dtype)


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 3, 2)])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}], ids=str
)
def test_it_equals_batch_norm_over_the_whole_batch(shape, options):
    sizes = [3, 0, 2]
    classes = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm2d}

    def body():
        import horocache.torch as hvd

        hvd.init()
        start = sum(sizes[: hvd.rank()])
        batch = whole_batch(sizes, shape)[start : start + sizes[hvd.rank()]].requires_grad_()
        layer = hvd.SyncBatchNorm(4, **options).double()
        for step in range(2):
            batch.grad = None
            layer.zero_grad()
            output = layer(batch)
            (output**3 * (step + 1)).sum().backward()
        layer.eval()
        values = layer.state_dict()
        gradients = [p.grad for p in layer.parameters()]
        return output.detach(), batch.grad, gradients, values, layer(batch).detach()

    batch = whole_batch(sizes, shape).requires_grad_()
    layer = classes[len(shape)](4, **options).double()
    for step in range(2):
        batch.grad = None
        layer.zero_grad()
        output = layer(batch)
        (output**3 * (step + 1)).sum().backward()
    layer.eval()
    results = run(body, 3)
    close = {"rtol": 1e-6, "atol": 1e-8}
    torch.testing.assert_close(torch.cat([r[0] for r in results]), output.detach(), **close)
    torch.testing.assert_close(torch.cat([r[1] for r in results]), batch.grad, **close)
    for index, param in enumerate(layer.parameters()):
        torch.testing.assert_close(sum(r[2][index] for r in results), param.grad, **close)
    for _, _, _, values, _ in results:
        torch.testing.assert_close(values, layer.state_dict(), **close)
    torch.testing.assert_close(torch.cat([r[4] for r in results]), layer(batch).detach(), **close)


def test_gradients_add_up_over_several_passes():
    def body():
        import horocache.torch as hvd

        hvd.init()
        layer = hvd.SyncBatchNorm(4).double()
        plain = torch.optim.SGD(layer.parameters(), lr=0.5)
        optimizer = hvd.DistributedOptimizer(plain, layer.named_parameters(), backward_passes_per_step=2)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            for _ in range(2):
                (layer(whole_batch([2] * 3, (4,))[hvd.rank() * 2 :][:2]) ** 3).sum().backward()
            optimizer.step()
        return [p.detach() for p in layer.parameters()]

    layer = torch.nn.BatchNorm1d(4).double()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            ((layer(whole_batch([2] * 3, (4,))) ** 3).sum() / 3).backward()
        optimizer.step()
    for result in run(body, 3):
        for got, expected in zip(result, layer.parameters(), strict=True):
            torch.testing.assert_close(got, expected.detach(), rtol=1e-6, atol=1e-8)


def test_half_precision_one_rank_and_bad_input():
    def body():
        import horocache.torch as hvd

        hvd.init()
        layer = hvd.SyncBatchNorm(4)
        batch = whole_batch([4], (4, 3), torch.bfloat16)[hvd.rank() * 2 :][:2].requires_grad_()
        output = layer(batch)
        output.sum().backward()
        with pytest.raises(ValueError, match="at least 2D"):
            layer(torch.ones(4))
        alone = hvd.SyncBatchNorm(4, process_set=hvd.process_sets()[1])
        own = alone(batch.float()).detach() if hvd.rank() == 0 else None
        return output.dtype, batch.grad.dtype, layer.weight.grad.dtype, own

    def start():
        import horocache.torch as hvd

        hvd.init(process_sets=[[0]])
        return body()

    first, second = run(start, 2)
    assert first[:3] == second[:3] == (torch.bfloat16, torch.bfloat16, torch.float32)
    batch = whole_batch([4], (4, 3), torch.bfloat16)[:2].float()
    torch.testing.assert_close(first[3], torch.nn.BatchNorm1d(4)(batch).detach())


@on_ranks(2)
def test_a_second_derivative_is_an_error():
    batch = torch.randn(3, 4, requires_grad=True)
    (first,) = torch.autograd.grad(hvd.SyncBatchNorm(4)(batch).pow(3).sum(), batch, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.pow(2).sum().backward()
