"""Around DistributedOptimizer's steps: class, schedulers, hooks, loading and broadcasting state, added groups."""

from __future__ import annotations

import warnings

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks as run

from ..small_model import batch, check_groups, group_names, make_model, parameters


@on_ranks(3)
def test_the_class_of_the_optimizer_is_kept_with_schedulers_closures_and_state():
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
    gathered = hvd.allgather(torch.cat([p.detach().flatten() for p in (*model.parameters(), extra)]).unsqueeze(0))
    assert all(torch.equal(gathered[0], other) for other in gathered)
    frozen = make_model()
    frozen[0].weight.requires_grad_(False)
    late = hvd.DistributedOptimizer(torch.optim.SGD(frozen.parameters(), lr=0.1), frozen.named_parameters())
    for thaw in (False, True):
        frozen[0].weight.requires_grad_(thaw)
        late.zero_grad()
        x, y = batch(1, hvd.rank())
        torch.nn.functional.cross_entropy(frozen(x), y).backward()
        late.step()
    gathered = hvd.allgather(frozen[0].weight.detach().unsqueeze(0))
    assert all(torch.equal(gathered[0], other) for other in gathered)


@on_ranks(3)
def test_optimizer_state_of_any_kind_is_taken_from_the_root():
    for make_optimizer in (
        lambda p: torch.optim.Adam(p, lr=0.1 * (hvd.rank() + 1), amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.1 * (hvd.rank() + 1), momentum=0.5, nesterov=True),
        torch.optim.Adadelta,
    ):
        for distributed in (False, True):
            model = make_model(seed=hvd.rank())
            optimizer = make_optimizer(model.parameters())
            if hvd.rank() == 1:  # only the root has state
                x, y = batch(0, hvd.rank())
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            if distributed:
                optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            hvd.broadcast_parameters(model.state_dict(), 1)
            hvd.broadcast_optimizer_state(optimizer, 1)
            state = optimizer.state_dict()
            everyone = hvd.allgather_object(state)
            for other in everyone:
                assert other["param_groups"] == state["param_groups"]
                assert other["state"].keys() == state["state"].keys() and len(state["state"]) == 5
                for key, entry in state["state"].items():
                    for what, value in entry.items():
                        theirs = other["state"][key][what]
                        assert torch.equal(theirs, value) if torch.is_tensor(value) else theirs == value


@on_ranks(2)
def test_hooks_of_the_step_run_once_whatever_state_was_loaded():
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
@pytest.mark.parametrize("event", ["load", "other passes"])
@on_ranks(2)
def test_what_interrupts_the_first_step_leaves_every_gradient_in_one_group(event, passes):
    params, named = parameters(6)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.1), named, backward_passes_per_step=passes, num_groups=2
    )

    def backward(some):
        for _ in range(passes):
            sum(param.sum() for param in some).backward()

    if event == "other passes":
        backward(params[5:])
        optimizer.set_backward_passes_per_step(passes)
    else:
        backward(params)
        optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        optimizer.zero_grad()
        backward(params)
        optimizer.step()
    groups = group_names(optimizer)
    check_groups(groups, 2, 6)


@on_ranks(2)
def test_a_group_that_comes_while_gradients_are_in_flight_is_refused_and_not_added():
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first], lr=1.0), [("first", first)])
    first.sum().backward()
    with pytest.raises(AssertionError, match="in flight"):
        optimizer.add_param_group({"params": [second]})
    assert len(optimizer.param_groups) == 1
    optimizer.step()
    optimizer.add_param_group({"params": [second]})
    (second.sum() * hvd.rank()).backward()
    optimizer.step()
    assert second.tolist() == [0.5, 0.5]


class WideState(torch.optim.Optimizer):
    """Keeps a float32 sum of the gradients of parameters of any type."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            kept = self.state[param].setdefault("sum", torch.zeros_like(param, dtype=torch.float32))
            kept += param.grad


def test_state_keeps_its_type_where_the_parameters_have_another():
    def body():
        import horocache.torch as hvd

        hvd.init()
        param = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        optimizer = WideState([param])
        if hvd.rank() == 0:
            param.grad = torch.full_like(param, 1.25)
            optimizer.step()
            optimizer.state[param]["sum"] += 1 / 3
            optimizer.state["of all"] = {"loss": torch.ones(2)}
        hvd.broadcast_optimizer_state(optimizer, 0)
        assert torch.equal(optimizer.state["of all"]["loss"], torch.ones(2))
        return optimizer.state[param]["sum"]

    first, second = run(body, 2)
    assert first.dtype is second.dtype is torch.float32
    assert torch.equal(first, second)
