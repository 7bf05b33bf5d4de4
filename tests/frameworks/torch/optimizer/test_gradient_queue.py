"""Small gradients are submitted together, at the latest when the backward pass that computed them ends.

To show it, ranks wait for gradients and for other operations in different orders. A rank that submitted its gradients
only in ``step`` would never submit the operation that the other rank waits for.
"""

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks


def _model_and_optimizer(hvd):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    return model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())


def _step_in_different_orders(hvd, optimizer):
    def other():
        return hvd.allreduce(torch.ones(1), op=hvd.Sum, name="between").item()

    first = other() if hvd.rank() == 0 else None
    optimizer.step()
    return first or other()


class _Fails(torch.autograd.Function):
    """The identity; its gradient raises an error while ``now`` is true."""

    now = True

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        if _Fails.now:
            raise RuntimeError("no gradient")
        return gradient


@on_ranks(2)
def test_they_are_under_way_when_the_backward_pass_is_over():
    model, optimizer = _model_and_optimizer(hvd)
    model(torch.ones(1, 4)).sum().backward()
    assert _step_in_different_orders(hvd, optimizer) == 2.0


@on_ranks(2)
def test_they_are_under_way_when_a_compiled_backward_pass_is_over():
    import torch._dynamo

    model, optimizer = _model_and_optimizer(hvd)
    torch._dynamo.config.compiled_autograd = True

    @torch.compile(backend="eager")
    def compute():
        model(torch.ones(1, 4)).sum().backward()

    compute()
    assert _step_in_different_orders(hvd, optimizer) == 2.0


@pytest.mark.parametrize("forget", ["load_state_dict", "set_backward_passes_per_step"])
@on_ranks(2)
def test_they_are_under_way_also_after_a_backward_pass_that_failed(forget):
    model, optimizer = _model_and_optimizer(hvd)
    state = optimizer.state_dict()
    _Fails.now = True
    with pytest.raises(RuntimeError, match="no gradient"):
        model[1:](_Fails.apply(model[:1](torch.ones(1, 4)))).sum().backward()
    getattr(optimizer, forget)(state if forget == "load_state_dict" else 1)
    optimizer.zero_grad()
    _Fails.now = False
    model(torch.ones(1, 4)).sum().backward()
    assert _step_in_different_orders(hvd, optimizer) == 2.0


@on_ranks(2)
def test_they_are_under_way_also_after_a_backward_pass_within_another_failed():
    model, optimizer = _model_and_optimizer(hvd)
    _Fails.now = True

    class TriesInside(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            with pytest.raises(RuntimeError, match="no gradient"), torch.enable_grad():
                model[1](_Fails.apply(torch.ones(1, 4, requires_grad=True))).sum().backward()
            return gradient

    TriesInside.apply(model[2:](model[0](torch.ones(1, 4)))).sum().backward()
    assert _step_in_different_orders(hvd, optimizer) == 2.0


@pytest.mark.parametrize("steps", [(3, 1), (1, 3)], ids=["contiguous", "strided"])
@on_ranks(2)
def test_one_that_a_later_hook_changes_is_an_error(steps):
    weight = torch.nn.Parameter(torch.empty_strided((3, 3), steps).fill_(1.0))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0), [("weight", weight)])

    def change(parameter):
        parameter.grad.mul_(2)

    weight.register_post_accumulate_grad_hook(change)
    (weight * 2).sum().backward()
    with pytest.raises(ValueError, match="gradient of weight was changed while"):
        optimizer.step()
