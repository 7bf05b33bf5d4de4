"""Gradients that are compressed, strided, lazily negated, lazily conjugated or without memory."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks


@on_ranks(3)
def test_compressed_and_strided_gradients_keep_their_type_and_values():
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


class Lazy(torch.autograd.Function):
    """The identity; its gradient has torch's lazy negation bit, or its lazy conjugation bit if it is complex."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient.conj_physical().conj() if gradient.is_complex() else torch._neg_view(-gradient)


@pytest.mark.parametrize("groups", [0, 1])
@on_ranks(2)
def test_lazily_negated_and_conjugated_gradients_are_reduced(groups):
    me, n = hvd.rank(), hvd.size()
    real = torch.nn.Parameter(torch.ones(3))
    turned = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    bits = []  # the lazy bits of each gradient: negation, conjugation
    for parameter in (real, turned):
        parameter.register_post_accumulate_grad_hook(lambda p: bits.append((p.grad.is_neg(), p.grad.is_conj())))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([real, turned], lr=0.0), [("real", real), ("turned", turned)], num_groups=groups
    )
    for _ in range(2):
        optimizer.zero_grad()
        identity = Lazy.apply if me == 0 else torch.clone
        ((identity(real).sum() + (identity(turned) * (1 + 2j)).sum().real) * (me + 1)).backward()
        optimizer.step()
        mean = sum(range(1, n + 1)) / n
        torch.testing.assert_close(real.grad.resolve_neg(), torch.full((3,), mean))
        torch.testing.assert_close(turned.grad.resolve_conj(), torch.full((3,), (1 - 2j) * mean))
    if me == 0:
        assert {(True, False), (False, True)} <= set(bits)
    else:
        assert set(bits) == {(False, False)}


@on_ranks(2)
def test_zero_tensors_without_memory_are_reduced():
    class ZeroGradient(torch.autograd.Function):
        """The sum; its gradient is a tensor of zeros that has no memory."""

        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            return torch._efficientzerotensor((3, 4))

    param, other = torch.nn.Parameter(torch.ones(3, 4)), torch.nn.Parameter(torch.ones(2))
    named = [("param", param), ("other", other)]
    for groups in (0, 1):
        sgd = torch.optim.SGD([param, other], lr=0.0)
        optimizer = hvd.DistributedOptimizer(sgd, named, num_groups=groups, op=hvd.Sum)
        for _ in range(3):
            optimizer.zero_grad()
            (ZeroGradient.apply(param) + other.sum()).backward()
            optimizer.step()
            assert param.grad.tolist() == [[0.0] * 4] * 3 and other.grad.tolist() == [2.0, 2.0]
