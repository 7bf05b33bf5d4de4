"""Clipping by the norm over a model whose experts are on different ranks, against one process."""

from __future__ import annotations

import math

import horocache.torch as hvd
import pytest
import torch
from horocache.torch.moe import clip_grad_norm_
from ranks import on_ranks

from horocache.errors import InvalidArgumentError

from .. import experts


def whole_model(part):
    """All parameters of the job with their reduced gradients, each expert once, as one process has them."""
    found = {}
    for pairs in hvd.allgather_object(
        [(name, param.detach(), param.grad) for name, param in part.named], name="whole_model"
    ):
        for name, value, grad in pairs:
            if name not in found:
                found[name] = torch.nn.Parameter(value)
                found[name].grad = grad
    return found


@on_ranks(1, 2, 3, 4, init=False)
def test_the_norm_counts_each_expert_once_and_all_ranks_scale_alike():
    sets = experts.start()
    for order in (2.0, 1.0, 3.0, math.inf):
        for limit in (0.5, 1e6):
            part = experts.Part(sets)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([param for _, param in part.named], lr=1.0), part.named
            )
            experts.backward(part, int(order) if order < 9 else 9)
            optimizer.synchronize()
            whole = whole_model(part)
            grads = torch.cat([param.grad.double().flatten() for param in whole.values()])
            wanted = torch.linalg.vector_norm(grads, order)
            norm = clip_grad_norm_([param for _, param in part.named], limit, order)
            torch.testing.assert_close(norm, wanted)
            assert len(set(hvd.allgather_object(norm.item()))) == 1
            factor = min(1.0, limit / (wanted.item() + 1e-6))
            for name, param in part.named:
                torch.testing.assert_close(param.grad, whole[name].grad * factor, msg=name)
            with optimizer.skip_synchronize():
                optimizer.step()


@on_ranks(2, init=False)
def test_norms_that_are_not_finite_are_so_on_all_ranks():
    sets = experts.start()
    part = experts.Part(sets)
    params = [param for _, param in part.named]
    for bad in (math.inf, math.nan):
        for _, param in part.named:
            param.grad = torch.full_like(param, 1.0)
        if hvd.rank() == 1:
            part.params["expert0.0"].grad.fill_(bad)  # of rank 1 alone
        with pytest.raises(RuntimeError, match=f"the norm of order 2.0 of all gradients is {bad}"):
            clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
        assert params[0].grad[0].item() == 1.0
        assert not torch.isfinite(clip_grad_norm_(params, 1.0))
        assert params[0].grad[0].item() == 0.0 or math.isnan(bad)
    for _, param in part.named:
        param.grad = None
    assert clip_grad_norm_(params, 1.0).item() == 0.0
    half = torch.nn.Parameter(torch.zeros(4, dtype=torch.float16))
    half.grad = torch.full_like(half, 60000.0)  # the norm is larger than the type can hold
    assert clip_grad_norm_(half, 1e6).item() == 120000.0
    table = torch.nn.Embedding(3, 2, sparse=True)
    table(torch.tensor([1, 1])).sum().backward()
    assert clip_grad_norm_(table.parameters(), 1e-3).item() == pytest.approx(math.sqrt(8))
    assert table.weight.grad.to_dense()[1].tolist() == pytest.approx([1e-3 / math.sqrt(2)] * 2, rel=1e-3)
    with pytest.raises(InvalidArgumentError, match="norm_type must be above 0; it is 0"):
        clip_grad_norm_(params, 1.0, 0)
    with pytest.raises(InvalidArgumentError, match="max_norm must be at least 0; it is -1"):
        clip_grad_norm_(params, -1)
