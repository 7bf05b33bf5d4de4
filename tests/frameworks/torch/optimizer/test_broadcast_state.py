"""Schedulers, inner optimizers and callbacks that share a wrapped optimizer's groups and state keep working."""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict

import cloudpickle
import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks as run

cloudpickle.register_pickle_by_value(sys.modules[__name__])


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
        # Like published optimizers, with keys that are valid only in this process.
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


def test_broadcast_state_is_written_where_schedulers_and_inner_optimizers_have_it():
    kinds = {
        "momentum": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
        "adam": lambda params, lr: torch.optim.Adam(params, lr=lr, amsgrad=True),
        "tensor lr": lambda params, lr: torch.optim.Adam(params, lr=torch.tensor(lr), foreach=False),
        "inner": lambda params, lr: Sam(params, torch.optim.SGD, lr=lr, momentum=0.9),
        "outer": lambda params, lr: Lookahead(torch.optim.SGD(params, lr=lr, momentum=0.9)),
        "averages": lambda params, lr: Averaging(torch.optim.SGD(params, lr=lr, momentum=0.9)),
        "more": lambda params, lr: Counting(params, lr=lr, momentum=0.9),
    }

    def body(kind, before_wrapping):
        import horocache.torch as hvd

        me = hvd.rank()
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        start = [param.detach().clone() for param in model.parameters()]
        plain = kinds[kind]([{"params": [p]} for p in model.parameters()], 0.1 * (me + 1))
        for _ in range(me):  # rank r has made r steps; rank 1 is the root
            model(torch.ones(1, 2)).pow(2).sum().backward()
            plain.step()
            plain.zero_grad()
        with torch.no_grad():
            for param, value in zip(model.parameters(), start, strict=True):
                param.copy_(value)
        if me == 1:
            plain.param_groups[1]["only the root's"] = {"tensor": torch.ones(2), "text": "x"}
        if me == 2:
            plain.param_groups[1]["not the root's"] = 3
        inner = [each for each in vars(plain).values() if isinstance(each, torch.optim.Optimizer)]
        kept = [each for optimizer in (plain, *inner) for each in dictionaries(optimizer)]
        made = [torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)] if before_wrapping else []
        optimizer = hvd.DistributedOptimizer(
            plain, [(f"{kind}.{before_wrapping}.{n}", p) for n, p in model.named_parameters()]
        )
        hvd.broadcast_optimizer_state(optimizer, 1)
        assert optimizer.param_groups is plain.param_groups
        if me != 2:  # on rank 2, entries that the root lacks are gone
            now = [each for o in (plain, *inner) for each in dictionaries(o)]
            assert all(any(old is new for new in now) for old in kept), kind
        assert optimizer.param_groups[1]["only the root's"]["tensor"].tolist() == [1.0, 1.0]
        assert "not the root's" not in optimizer.param_groups[1]
        schedulers = made or [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).pow(2).sum().backward()
                optimizer.step()
                for scheduler in schedulers:
                    scheduler.step()
        assert getattr(plain, "fast_state", None) in (None, *(each.state for each in inner))
        rates = [float(group["lr"]) for o in (optimizer, *inner) for group in o.param_groups]
        tensors = [value for o in (plain, *inner) for entry in o.state.values() for value in entry.values()]
        tensors += getattr(plain, "averages", [])
        return rates, [*model.parameters(), *tensors], getattr(optimizer, "count", None)

    def bodies():
        import horocache.torch as hvd

        hvd.init()
        results = []
        for kind in kinds:
            for before_wrapping in (True, False):
                rates, tensors, count = body(kind, before_wrapping)
                # Schedulers of tensor rates write into them; other schedulers compare with the rate at their start.
                everyone = hvd.allgather_object((rates, [t.detach().tolist() for t in tensors], count))
                assert everyone[0] == everyone[1] == everyone[2], (kind, before_wrapping, everyone)
                results.append((kind, before_wrapping, round(rates[0], 6), count))
        return results

    for results in run(bodies, 3):
        for kind, _, rate, count in results:
            assert rate == 0.025, results
            assert count == (4 if kind in ("more", "averages") else None), results


@on_ranks(3)
def test_ranks_whose_groups_are_not_the_roots_are_told_on_all_ranks():
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
