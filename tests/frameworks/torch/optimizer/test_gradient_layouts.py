"""Gradients with a compressed, strided, lazily negated or lazily conjugated layout in memory."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks as run


@on_ranks(3)
def test_compressed_and_strided_gradients_arrive_in_their_own_type_and_layout():
    me, n = hvd.rank(), hvd.size()
    conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    half = torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    named = [("weight", conv.weight), ("bias", conv.bias), ("half", half)]
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        for groups in (0, 1):
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p for _, p in named], lr=0.0), named, compression=compression, num_groups=groups
            )
            for _ in range(2):
                optimizer.zero_grad()
                image = torch.full((1, 3, 3, 3), float(me + 1)).to(memory_format=torch.channels_last)
                (conv(image).sum() + half.sum() * (me + 1)).backward()
                optimizer.step()
                mean = sum(range(1, n + 1)) / n
                torch.testing.assert_close(conv.weight.grad, torch.full((4, 3, 3, 3), mean), rtol=1e-2, atol=0)
                assert conv.weight.grad.dtype == torch.float32
                assert half.grad.dtype == torch.bfloat16
                torch.testing.assert_close(half.grad, torch.full((5,), mean, dtype=torch.bfloat16))
            del optimizer


class _Lazy(torch.autograd.Function):
    """The identity; its gradient has torch's lazy negation bit, or its lazy conjugation bit if it is complex."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient.conj_physical().conj() if gradient.is_complex() else torch._neg_view(-gradient)


@pytest.mark.parametrize("groups", [0, 1])
def test_lazily_negated_and_conjugated_gradients_are_reduced(groups):
    def body():
        import horocache.torch as hvd

        hvd.init()
        me, n = hvd.rank(), hvd.size()
        real = torch.nn.Parameter(torch.ones(3))
        turned = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
        lazy = []
        for parameter in (real, turned):
            parameter.register_post_accumulate_grad_hook(lambda p: lazy.append((p.grad.is_neg(), p.grad.is_conj())))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([real, turned], lr=0.0), [("real", real), ("turned", turned)], num_groups=groups
        )
        for _ in range(2):
            optimizer.zero_grad()
            same = _Lazy.apply if me == 0 else torch.clone
            ((same(real).sum() + (same(turned) * (1 + 2j)).sum().real) * (me + 1)).backward()
            optimizer.step()
            mean = sum(range(1, n + 1)) / n
            torch.testing.assert_close(real.grad.resolve_neg(), torch.full((3,), mean))
            torch.testing.assert_close(turned.grad.resolve_conj(), torch.full((3,), (1 - 2j) * mean))
        return lazy

    lazy, eager = run(body, 2)
    assert {(True, False), (False, True)} <= set(lazy) and set(eager) == {(False, False)}
