"""Small gradients are submitted together, at the latest when the backward pass that computed them ends.

To show this, the ranks wait for gradients and for another operation in different orders. A rank that submitted its
gradients only in ``step`` would never submit the operation that the other rank waits for.
"""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks


def model_and_optimizer():
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    return model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())


def check_submitted(optimizer):
    """Check that the gradients are submitted: rank 0 runs another operation before its step, rank 1 after its step."""

    def sum_of_ones():
        return hvd.allreduce(torch.ones(1), op=hvd.Sum, name="between").item()

    total = sum_of_ones() if hvd.rank() == 0 else None
    optimizer.step()
    assert (total or sum_of_ones()) == 2.0


class Failing(torch.autograd.Function):
    """The identity; its gradient raises an error while ``fails`` is true."""

    fails = True

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        if Failing.fails:
            raise RuntimeError("no gradient")
        return gradient


@on_ranks(2)
def test_gradients_are_submitted_when_the_backward_pass_ends():
    model, optimizer = model_and_optimizer()
    model(torch.ones(1, 4)).sum().backward()
    check_submitted(optimizer)


@on_ranks(2)
def test_gradients_are_submitted_when_a_compiled_backward_pass_ends():
    import torch._dynamo

    model, optimizer = model_and_optimizer()
    torch._dynamo.config.compiled_autograd = True

    @torch.compile(backend="eager")
    def compute():
        model(torch.ones(1, 4)).sum().backward()

    compute()
    check_submitted(optimizer)


@pytest.mark.parametrize("discard", ["load_state_dict", "set_backward_passes_per_step"])
@on_ranks(2)
def test_gradients_are_submitted_after_an_earlier_backward_pass_failed(discard):
    model, optimizer = model_and_optimizer()
    state = optimizer.state_dict()
    Failing.fails = True
    with pytest.raises(RuntimeError, match="no gradient"):
        model[1:](Failing.apply(model[:1](torch.ones(1, 4)))).sum().backward()
    getattr(optimizer, discard)(state if discard == "load_state_dict" else 1)
    optimizer.zero_grad()
    Failing.fails = False
    model(torch.ones(1, 4)).sum().backward()
    check_submitted(optimizer)


@on_ranks(2)
def test_gradients_are_submitted_after_a_nested_backward_pass_failed():
    model, optimizer = model_and_optimizer()
    Failing.fails = True

    class NestedFailure(torch.autograd.Function):
        """The identity; its gradient runs a backward pass that fails."""

        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            with pytest.raises(RuntimeError, match="no gradient"), torch.enable_grad():
                model[1](Failing.apply(torch.ones(1, 4, requires_grad=True))).sum().backward()
            return gradient

    NestedFailure.apply(model[2:](model[0](torch.ones(1, 4)))).sum().backward()
    check_submitted(optimizer)
