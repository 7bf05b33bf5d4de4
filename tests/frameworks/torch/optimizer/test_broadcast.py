"""Broadcast of parameters and optimizer state from a root, into the objects in which other objects share them."""

from __future__ import annotations

import warnings
from collections import defaultdict

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.errors import MismatchError

from ..small_model import batch, check_equal_on_all_ranks, make_model


@on_ranks(2)
def test_broadcasting_models_that_differ_between_ranks_raises_a_mismatch():
    a, b, count = torch.ones(3), torch.ones(2), torch.tensor(4)
    for first, second, tensor in (
        ({"a": a, "b": b}, {"b": b}, "b"),
        ({"a": count, "b": b}, {"b": b}, "a"),
        ({"a": a, "b": b}, {"a": a.double(), "b": b}, "[ab]"),  # groups of different names share both
        ({"a": a, "b": b}, {"a": a, "b": a}, "b"),
        ([a, b], [a], "1"),
    ):
        with pytest.raises(MismatchError, match=f"'parameter.{tensor}'"):
            hvd.broadcast_parameters(first if hvd.rank() == 0 else second, 0)
    both = [("w", torch.full((2,), 1.0 + hvd.rank())), ("w", torch.full((3,), 5.0 + hvd.rank()))]
    hvd.broadcast_parameters(both, 1)  # two models may have the same names
    assert [tensor[0].item() for _, tensor in both] == [2.0, 6.0]
    # If the models are equal, tensors of several types are one operation.
    mine = {"w": torch.full((2,), 1.0 + hvd.rank()), "count": torch.tensor(5 + hvd.rank()), "v": torch.ones(1)}
    hvd.broadcast_parameters(mine, 1)
    assert (mine["w"].tolist(), mine["count"].item()) == ([2.0, 2.0], 6)
    assert hvd.metrics()["op_count.broadcast"] == 2  # an operation that fails is not counted


@on_ranks(3)
def test_optimizer_state_of_any_kind_is_broadcast_from_the_root():
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
                    for name, value in entry.items():
                        theirs = other["state"][key][name]
                        assert torch.equal(theirs, value) if torch.is_tensor(value) else theirs == value


class WideState(torch.optim.Optimizer):
    """Keeps a float32 sum of the gradients of parameters of any type."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            total = self.state[param].setdefault("sum", torch.zeros_like(param, dtype=torch.float32))
            total += param.grad


@on_ranks(2)
def test_broadcast_state_keeps_its_type_if_the_parameters_have_another():
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = WideState([param])
    if hvd.rank() == 0:
        param.grad = torch.full_like(param, 1.25)
        optimizer.step()
        optimizer.state[param]["sum"] += 1 / 3
        optimizer.state["of all"] = {"loss": torch.ones(2)}
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert torch.equal(optimizer.state["of all"]["loss"], torch.ones(2))
    assert optimizer.state[param]["sum"].dtype is torch.float32
    check_equal_on_all_ranks([optimizer.state[param]["sum"]])


class Sam(torch.optim.Optimizer):
    """Shares its groups with an inner optimizer, which has its own state."""

    def __init__(self, params, base, **options):
        super().__init__(params, {"rho": 0.05, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    def step(self, closure=None):
        return self.base_optimizer.step()


class Lookahead(torch.optim.Optimizer):
    """Wraps an existing optimizer, and keeps slow weights in its own state."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.defaults = optimizer.defaults
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
        self.state = defaultdict(dict)

    def state_dict(self):
        return {"fast": self.optimizer.state_dict(), "slow": [dict(entry) for entry in self.state.values()]}

    def step(self, closure=None):
        self.optimizer.step()
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param].setdefault("slow", param.detach().clone()).lerp_(param.detach(), 0.5)


class Averaging(Lookahead):
    """Has more attributes, and a second reference to the inner optimizer's state."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.fast_state = optimizer.state
        self.count = 0
        self.averages = [param.detach().clone() for group in self.param_groups for param in group["params"]]

    def state_dict(self):
        # As in published optimizers, the keys are valid only in this process.
        slow = {id(key): entry for key, entry in self.state.items()}
        return {**self.optimizer.state_dict(), "slow": slow, "count": self.count, "averages": self.averages}

    def load_state_dict(self, state_dict):
        self.state = defaultdict(dict, state_dict["slow"])
        self.optimizer.load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        self.param_groups, self.fast_state = self.optimizer.param_groups, self.optimizer.state
        self.count, self.averages = state_dict["count"], state_dict["averages"]

    def step(self, closure=None):
        super().step()
        self.count += 1
        params = [param for group in self.param_groups for param in group["params"]]
        for average, param in zip(self.averages, params, strict=True):
            average.lerp_(param.detach(), 1.0 / (self.count + 1))


class Counting(torch.optim.SGD):
    """Its state dict has another entry besides groups and state."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)

    def state_dict(self):
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict.pop("count")
        super().load_state_dict(state_dict)


def dictionaries(optimizer):
    """The lists and dictionaries of an optimizer that other objects may reference."""
    groups = optimizer.param_groups
    return [groups, *groups, optimizer.state, *optimizer.state.values()]


# Makes an optimizer from parameter groups and a learning rate.
KINDS = {
    "momentum": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
    "adam": lambda params, lr: torch.optim.Adam(params, lr=lr, amsgrad=True),
    "tensor lr": lambda params, lr: torch.optim.Adam(params, lr=torch.tensor(lr), foreach=False),
    "inner": lambda params, lr: Sam(params, torch.optim.SGD, lr=lr, momentum=0.9),
    "outer": lambda params, lr: Lookahead(torch.optim.SGD(params, lr=lr, momentum=0.9)),
    "averages": lambda params, lr: Averaging(torch.optim.SGD(params, lr=lr, momentum=0.9)),
    "more": lambda params, lr: Counting(params, lr=lr, momentum=0.9),
}


def train_after_broadcast(kind, scheduler_first):
    """Broadcast rank 1's state and train; return the learning rates, all tensors, and the count of steps if any.

    The scheduler is made before the optimizer is wrapped if ``scheduler_first``.
    """
    me = hvd.rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    start = [param.detach().clone() for param in model.parameters()]
    plain = KINDS[kind]([{"params": [p]} for p in model.parameters()], 0.1 * (me + 1))
    for _ in range(me):  # rank r has made r steps; rank 1 is the root
        model(torch.ones(1, 2)).pow(2).sum().backward()
        plain.step()
        plain.zero_grad()
    with torch.no_grad():
        for param, value in zip(model.parameters(), start, strict=True):
            param.copy_(value)
    if me == 1:
        plain.param_groups[1]["only on the root"] = {"tensor": torch.ones(2), "text": "x"}
    if me == 2:
        plain.param_groups[1]["not on the root"] = 3
    inner = [each for each in vars(plain).values() if isinstance(each, torch.optim.Optimizer)]
    before = [each for optimizer in (plain, *inner) for each in dictionaries(optimizer)]
    schedulers = [torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)] if scheduler_first else []
    optimizer = hvd.DistributedOptimizer(
        plain, [(f"{kind}.{scheduler_first}.{name}", p) for name, p in model.named_parameters()]
    )
    hvd.broadcast_optimizer_state(optimizer, 1)
    assert optimizer.param_groups is plain.param_groups
    if me != 2:  # rank 2 has dropped entries that the root lacks
        after = [each for optimizer in (plain, *inner) for each in dictionaries(optimizer)]
        assert all(any(old is new for new in after) for old in before), kind
    assert optimizer.param_groups[1]["only on the root"]["tensor"].tolist() == [1.0, 1.0]
    assert "not on the root" not in optimizer.param_groups[1]
    if not scheduler_first:
        schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).pow(2).sum().backward()
            optimizer.step()
            for scheduler in schedulers:
                scheduler.step()
    assert getattr(plain, "fast_state", None) in (None, *(each.state for each in inner))
    rates = [float(group["lr"]) for each in (optimizer, *inner) for group in each.param_groups]
    tensors = [value for each in (plain, *inner) for entry in each.state.values() for value in entry.values()]
    tensors += getattr(plain, "averages", [])
    return rates, [t.detach().tolist() for t in (*model.parameters(), *tensors)], getattr(optimizer, "count", None)


@on_ranks(3)
def test_broadcast_updates_state_that_schedulers_and_inner_optimizers_share():
    for kind in KINDS:
        for scheduler_first in (True, False):
            result = train_after_broadcast(kind, scheduler_first)
            everyone = hvd.allgather_object(result)
            assert everyone[0] == everyone[1] == everyone[2], (kind, scheduler_first, everyone)
            rates, _, count = result
            assert round(rates[0], 6) == 0.025, (kind, scheduler_first, rates)  # the root's 0.2, halved three times
            assert count == (4 if kind in ("more", "averages") else None), (kind, scheduler_first, count)


@on_ranks(3)
def test_groups_that_differ_from_the_roots_raise_on_all_ranks():
    model = torch.nn.Linear(2, 2)
    groups = [{"params": [p]} for p in model.parameters()] if hvd.rank() == 2 else model.parameters()
    with pytest.raises(ValueError, match=r"rank 2 has SGD with 1 \+ 1 parameters; the root, rank 1, has SGD with 2"):
        hvd.broadcast_optimizer_state(torch.optim.SGD(groups, lr=1.0), 1)
    kind = torch.optim.Adam if hvd.rank() == 0 else torch.optim.SGD
    with pytest.raises(ValueError, match="rank 0 has Adam with 2 parameters; the root, rank 1, has SGD"):
        hvd.broadcast_optimizer_state(kind(model.parameters(), lr=1.0), 1)
    # Like torch's ZeroRedundancyOptimizer: each rank has the state of different parameters.
    sharing = torch.optim.SGD(model.parameters(), lr=1.0)
    sharing.optim = torch.optim.SGD([list(model.parameters())[hvd.rank() % 2]], lr=1.0)
    with pytest.raises(ValueError, match=r"optim has other .* on rank 0 \(numbers \[\[0\]\]\) than .* \[\[1\]\]"):
        hvd.broadcast_optimizer_state(sharing, 1)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3.0


@pytest.mark.parametrize("op", ["Average", "Adasum"])
@on_ranks(2)
def test_loading_into_the_plain_or_the_wrapped_optimizer_loads_into_both(op):
    model = torch.nn.Linear(2, 2)
    plain = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=getattr(hvd, op))
    saved = optimizer.state_dict()
    for target in (optimizer, plain):
        target.load_state_dict(saved)
        assert optimizer.param_groups is plain.param_groups and optimizer.state is plain.state
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
    assert plain.state[model.weight]["momentum_buffer"] is optimizer.state[model.weight]["momentum_buffer"]
    assert (optimizer.param_groups[0]["lr"], torch.optim.lr_scheduler.StepLR(optimizer, 1).get_last_lr()) == (
        0.5,
        [0.5],
    )
