"""The class of a distributed optimizer: base class, schedulers, closures, step hooks, loading state."""

from __future__ import annotations

import warnings

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from ..small_model import batch, check_equal_on_all_ranks, check_groups, group_names, make_model, parameters


@on_ranks(3)
def test_the_optimizers_class_schedulers_closures_and_state_are_kept():
    model = make_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), num_groups=2)
    assert type(optimizer).__name__ == "SGD" and isinstance(optimizer, torch.optim.SGD)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    def loss():
        optimizer.zero_grad()
        x, y = batch(0, hvd.rank())
        value = torch.nn.functional.cross_entropy(model(x), y)
        value.backward()
        return value

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert optimizer.step(loss).item() > 0
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    saved = optimizer.state_dict()
    assert saved["state"][0]["momentum_buffer"].shape == (16, 6)
    loss()
    optimizer.load_state_dict(saved)
    loss()
    optimizer.step()
    extra = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [extra]})
    loss()
    (extra.sum() * (hvd.rank() + 1)).backward()
    optimizer.step()
    check_equal_on_all_ranks([*model.parameters(), extra])


@on_ranks(3)
def test_a_parameter_that_is_unfrozen_after_wrapping_is_reduced():
    model = make_model()
    model[0].weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for trainable in (False, True):
        model[0].weight.requires_grad_(trainable)
        optimizer.zero_grad()
        x, y = batch(1, hvd.rank())
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    check_equal_on_all_ranks([model[0].weight])


@on_ranks(2)
def test_step_hooks_run_once_per_step_also_after_loading_state():
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.1, momentum=0.9), [("p", param)])
    ran = []
    optimizer.register_step_pre_hook(lambda *_: ran.append("pre"))
    optimizer.register_step_post_hook(lambda *_: ran.append("post"))
    for load in (
        lambda: None,
        lambda: hvd.broadcast_optimizer_state(optimizer, 0),
        lambda: optimizer.load_state_dict(optimizer.state_dict()),
    ):
        load()
        param.sum().backward()
        optimizer.step()
    assert ran == ["pre", "post"] * 3


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("interruption", ["load_state_dict", "set_backward_passes_per_step"])
@on_ranks(2)
def test_after_an_interrupted_first_step_every_gradient_is_in_one_group(interruption, passes):
    params, named = parameters(6)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.1), named, backward_passes_per_step=passes, num_groups=2
    )

    def backward(used):
        for _ in range(passes):
            sum(param.sum() for param in used).backward()

    if interruption == "set_backward_passes_per_step":
        backward(params[5:])
        optimizer.set_backward_passes_per_step(passes)
    else:
        backward(params)
        optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        optimizer.zero_grad()
        backward(params)
        optimizer.step()
    check_groups(group_names(optimizer), 2, 6)
