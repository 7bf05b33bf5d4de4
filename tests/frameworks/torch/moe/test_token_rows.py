"""Dispatch and combine of torch: gradients, equal bits, and a mixture of experts that is made of them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from horocache.torch.moe import MoELayer, combine, dispatch
from ranks import on_ranks

from horocache.moe.exchanges import exchange_names

from .dense import Expert, tokens_of

HIDDEN, K, EXPERTS = 3, 2, 5


class Replicated(torch.autograd.Function):
    """The same tensor on all ranks; its gradient is the sum of those of all ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        import horocache.torch as hvd

        return hvd.allreduce(grad, op=hvd.Sum)


class Gathered(torch.autograd.Function):
    """The tensors of all ranks, on all ranks; all ranks have equal gradients of the result."""

    @staticmethod
    def forward(ctx, x):
        import horocache.torch as hvd

        ctx.rows = [int(rows) for rows in hvd.allgather(torch.tensor([len(x)]))]
        return hvd.allgather(x)

    @staticmethod
    def backward(ctx, grad):
        import horocache as hc

        return grad.split(ctx.rows)[hc.rank()]


def experts_of(rank, tokens):
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-1, EXPERTS, (tokens, K), generator=generator)


def tokens_on(rank):
    return (2 * rank + 2) % 5  # rank 4 has none


@on_ranks(1, 2, 4)
def test_m16_gradients_are_those_of_finite_differences_also_the_second_ones():
    import horocache as hc

    rank, ranks = hc.rank(), hc.size()
    counts = [tokens_on(each) for each in range(ranks)]
    chosen = experts_of(rank, counts[rank])

    def function(x, weights):
        """Every rank has all tokens; it dispatches its own ones, and all ranks get the outputs of all."""
        own = [Replicated.apply(each).split(counts)[rank] for each in (x, weights)]
        came, numbers, slots, handle = dispatch(own[0], chosen, own[1], num_experts=EXPERTS, name="a")
        factors = (slots * torch.where(numbers >= 0, numbers + 1.0, 0.0)).sum(1, keepdim=True)
        out, back = combine(torch.tanh(came) * factors, handle, torch.sin(slots))
        again, _, _, _ = dispatch(out, handle=handle, name="b")
        return Gathered.apply(out), Gathered.apply(back), Gathered.apply(combine(again**2, handle))

    torch.manual_seed(1)
    inputs = [torch.randn(sum(counts), width, dtype=torch.float64, requires_grad=True) for width in (HIDDEN, K)]
    assert torch.autograd.gradcheck(function, inputs)


@on_ranks(2, 3)
def test_m16_backward_passes_of_dispatch_and_combine_are_each_other():
    import horocache as hc

    rank = hc.rank()
    x, _ = tokens_of(rank, 4, HIDDEN, torch.float64)
    came, _, _, handle = dispatch(x, experts_of(rank, 4), num_experts=EXPERTS, name="a")
    grad = torch.randn(came.shape, dtype=torch.float64)
    came.backward(grad)
    assert torch.equal(x.grad, combine(grad, handle))
    y = grad.clone().requires_grad_()
    weight = torch.randn(x.shape, dtype=torch.float64)
    combine(y, handle).backward(weight)
    with torch.no_grad():
        again, _, none, _ = dispatch(weight, handle=handle)
    assert torch.equal(y.grad, again) and none is None and not again.requires_grad


@on_ranks(2)
def test_second_derivatives_run_the_exchanges_again():
    import horocache as hc

    x, _ = tokens_of(hc.rank(), 3, HIDDEN, torch.float64)
    came, _, _, handle = dispatch(x, torch.zeros(3, 1, dtype=torch.int64), num_experts=2, name="a")
    out = combine(came**3, handle)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(first, 3 * x**2) and torch.allclose(second, 6 * x)


class Mixture(torch.nn.Module):
    """A mixture of experts by dispatch and combine: experts of this rank run on their received rows."""

    def __init__(self, kind, layer, name):
        super().__init__()
        self.kind, self.gate, self.experts, self.name = kind, layer.gate, layer.experts, name

    def forward(self, x):
        routing = self.gate(x, None)
        came, numbers, slots, handle = dispatch(
            x, routing.topk_idx, routing.topk_weights, num_experts=EXPERTS, name=self.name, exchange=self.kind
        )
        y = (came * 0).to(slots.dtype)  # a rank without experts has a backward pass, too
        for expert, module in self.experts.items():
            rows, columns = (torch.from_numpy(each) for each in handle.slots_of(int(expert)))
            outputs = module(came[rows]) * slots[rows, columns].unsqueeze(1)
            y = y.index_add(0, rows, outputs.to(y.dtype))
        return combine(y.to(x.dtype), handle), numbers


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@on_ranks(1, 3, 8, knobs={"moe_exchange": "hierarchical"})
def test_m1_m16_a_mixture_made_of_them_equals_the_layer_with_equal_bits_on_all_exchanges(dtype):
    import horocache as hc

    kind_of = getattr(torch, dtype)
    tolerance = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 0.1}[dtype]
    torch.manual_seed(3)
    layer = MoELayer(HIDDEN, partial(Expert, HIDDEN), EXPERTS, K, min_capacity=4, name="layer").to(kind_of)
    x, grad = tokens_of(hc.rank(), tokens_on(hc.rank()), HIDDEN, kind_of)
    results = []
    for kind in [None, *exchange_names()]:
        layer.zero_grad()
        x.grad = None
        output = layer(x)[0] if kind is None else Mixture(kind, layer, f"mixture.{kind}")(x)[0]
        (output * grad).sum().backward()
        grads = [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in layer.parameters()]
        results.append([output.detach(), x.grad, *grads])
    for found in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found, results[1], strict=True))
    for one, other in zip(results[0], results[1], strict=True):
        assert torch.allclose(one, other, atol=tolerance, rtol=tolerance)


@on_ranks(2)
def test_m15_tensors_of_another_kind_are_an_error_on_all_ranks():
    import horocache as hc
    from horocache.errors import InputFailedError, InvalidArgumentError

    wrong = hc.rank() == 1
    chosen = torch.zeros(2, 1, dtype=torch.int64)
    for x in (torch.ones(2, 3, dtype=torch.int32), torch.ones(2, 3, 1), torch.ones(2, 3).numpy()):
        with pytest.raises(InvalidArgumentError if wrong else InputFailedError, match="rank 1"):
            dispatch(x if wrong else torch.ones(2, 3), chosen, num_experts=2, name="a")
    came, experts, _, handle = dispatch(torch.ones(2, 3), chosen, num_experts=2, name="a")
    assert came.requires_grad and experts.dtype == torch.int64
    assert combine(came, handle).tolist() == [[1.0] * 3] * 2
