"""Overflow of an expert's gradient on one rank: all ranks skip the step and lower their scale."""

from __future__ import annotations

import math

import horocache.torch as hvd
import torch
from horocache.torch.moe import GradScaler, clip_grad_norm_
from ranks import on_ranks

from .. import experts


def train(sets, label, clips, make):
    part = experts.Part(sets)
    optimizer = hvd.DistributedOptimizer(
        make([param for _, param in part.named]), [(f"{label}.{name}", param) for name, param in part.named]
    )
    scaler = GradScaler("cpu", init_scale=64.0, growth_interval=2)
    scales = []
    for step in range(4):
        before = [param.detach().clone() for _, param in part.named]
        optimizer.zero_grad()
        values = [(param * experts.slope(name, step, hvd.rank())).sum().double() for name, param in part.named]
        scaler.scale(sum(values)).backward()
        if step == 1 and hvd.rank() == 1:
            own = next(name for name in part.params if part.holders[name] == [1])
            part.params[own].grad.fill_(math.inf)
        if clips:
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            clip_grad_norm_([param for _, param in part.named], 1e9)
            if step != 1:
                for name, param in part.named:
                    wanted = torch.full_like(param, experts.wanted_gradient(part, name, step))
                    torch.testing.assert_close(param.grad, wanted, msg=name)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        unchanged = [torch.equal(old, param) for old, (_, param) in zip(before, part.named, strict=True)]
        assert all(unchanged) == (step == 1), (label, step)
    assert scales == [64.0, 32.0, 32.0, 64.0], scales


@on_ranks(1, 2, 3, 4, init=False)
def test_all_ranks_skip_the_step_in_which_an_expert_of_one_rank_overflows():
    sets = experts.start()
    if hvd.size() == 1:
        scaler = GradScaler("cpu", init_scale=2.0)
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        assert weight.item() == 0.0
        return
    for clips in (False, True):
        train(sets, f"sgd{clips}", clips, lambda params: torch.optim.SGD(params, lr=0.5))
        train(sets, f"adam{clips}", clips, lambda params: torch.optim.Adam(params, lr=0.5, fused=True))
