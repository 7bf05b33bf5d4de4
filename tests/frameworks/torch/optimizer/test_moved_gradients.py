"""Gradients whose memory the program changes: by moving a model to another type, or by giving a tensor other data."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks


@on_ranks(2)
def test_sparse_gradients_and_those_of_models_that_are_moved_to_another_type():
    table = torch.nn.Embedding(6, 3, sparse=True)
    head = torch.nn.Linear(3, 2)
    named = [("table", table.weight), *head.named_parameters()]
    plain = torch.optim.SGD([p for _, p in named], lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, named, num_groups=1, op=hvd.Sum)
    for dtype in (torch.float32, torch.float64):
        head.to(dtype)
        table.to(dtype)
        for _ in range(2):
            optimizer.zero_grad()
            head(table(torch.tensor([hvd.rank()]))).sum().backward()
            optimizer.step()
            assert head.bias.grad.dtype is dtype and head.bias.grad.tolist() == [2.0, 2.0]
            assert table.weight.grad.is_sparse
            assert hvd.is_shared(head.weight.grad)


@pytest.mark.parametrize("num_groups", [0, 2])
@pytest.mark.parametrize("set_to_none", [True, False])
@on_ranks(2)
def test_gradients_that_the_program_gives_other_memory_are_reduced_where_they_are(num_groups, set_to_none):
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.Conv2d(3, 4, 2))
    model = model.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters(), num_groups=num_groups, op=hvd.Sum
    )
    x = torch.ones(1, 2, 4, 4)
    for step in range(8):
        if step in (2, 4):
            model.to(torch.float64 if step == 2 else torch.float32)  # gradients move to other memory, too
            x = x.to(model[0].weight.dtype)
        optimizer.zero_grad(set_to_none=set_to_none)
        if step == 6 and not set_to_none:
            for p in model.parameters():
                p.grad.data = torch.zeros_like(p)
        (model(x).sum() * (1 + hvd.rank())).backward()
        optimizer.step()
        ours = [p.grad.clone() for p in model.parameters()]
        sums = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        assert all(torch.equal(a, 3 * b) for a, b in zip(ours, sums, strict=True))
        assert all(hvd.is_shared(p.grad) for p in model.parameters())
