"""Optimizers that the program defines: arguments of their methods, wrappers that are not optimizers, and copies."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks

from ..small_model import check_equal_on_all_ranks


class WithoutArguments(torch.optim.SGD):
    """Its methods take no arguments."""

    def zero_grad(self):
        super().zero_grad(set_to_none=False)

    def step(self):
        return super().step()


class WithMoreArguments(torch.optim.SGD):
    """Its methods take additional arguments."""

    def zero_grad(self, set_to_none=True, *, log=None):
        log.append("zero_grad")
        super().zero_grad(set_to_none)

    def step(self, closure=None, scale=1.0, *, log):
        log.append(("step", closure is not None, scale))
        return super().step(closure)


class Noam:
    """A learning-rate wrapper as in papers: it has an optimizer's groups, but does not derive from Optimizer."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.steps = 0

    def step(self):
        self.steps += 1
        for group in self.param_groups:
            group["lr"] = 1.0 / self.steps
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


@on_ranks(1, 2)
def test_step_and_zero_grad_pass_on_all_arguments():
    for op in (hvd.Average, hvd.Adasum):
        model = torch.nn.Linear(2, 2)
        before = model.weight.detach().clone()

        def backward(model=model):
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            return loss

        optimizer = hvd.DistributedOptimizer(
            WithoutArguments(model.parameters(), lr=0.5), model.named_parameters(), op=op
        )
        backward()
        optimizer.step()
        optimizer.zero_grad()
        assert model.weight.grad.count_nonzero() == 0
        torch.testing.assert_close(model.weight.detach(), before - 0.5)
        backward()
        optimizer.synchronize()
        if op != hvd.Adasum:
            with optimizer.skip_synchronize():
                optimizer.step()
        assert not inspect.signature(optimizer.zero_grad).parameters
        assert not inspect.signature(optimizer.step).parameters
        with pytest.raises(TypeError):
            optimizer.zero_grad(True)
        del optimizer

        log = []
        model.zero_grad()
        optimizer = hvd.DistributedOptimizer(
            WithMoreArguments(model.parameters(), lr=0.5), model.named_parameters(), op=op
        )
        backward()
        optimizer.step(scale=2.0, log=log)
        optimizer.zero_grad(False, log=log)
        optimizer.step(backward, 3.0, log=log)
        optimizer.zero_grad(log=log)
        loss = optimizer.step(log=log, closure=backward)
        assert loss.numel() == 1 and list(inspect.signature(optimizer.step).parameters) == ["closure", "scale", "log"]
        assert log == [
            ("step", False, 2.0),
            "zero_grad",
            ("step", True, 3.0),
            "zero_grad",
            ("step", True, 1.0),
        ]
        torch.testing.assert_close(model.weight.detach(), before - (1.0 if op == hvd.Adasum else 1.5) - 1.0)


@on_ranks(2)
def test_wrappers_that_are_not_optimizers_wrap_the_distributed_one():
    param = torch.nn.Parameter(torch.zeros(2))
    for op in (hvd.Average, hvd.Adasum):
        with pytest.raises(ValueError, match=r"Noam does not derive .* Noam\(\.\.\., DistributedOptimizer\(opt"):
            hvd.DistributedOptimizer(Noam(torch.optim.SGD([param], lr=0.0)), op=op)
    noam = Noam(hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.0)))
    for _ in range(2):
        noam.zero_grad()
        (param * (hvd.rank() + 1)).sum().backward()
        noam.step()
    assert param.tolist() == [-1.5 * 1.5] * 2


@pytest.mark.parametrize("size", [1, 2])
def test_copies_of_a_wrapped_optimizer_are_distributed(size):
    def train_copies():
        hvd.init()
        for number, kind in enumerate(({}, {"num_groups": 1}, {"groups": True}, {"op": hvd.Adasum})):
            model = torch.nn.Linear(2, 2)
            torch.nn.init.zeros_(model.weight)
            plain = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
            options = {"groups": [list(model.parameters())]} if "groups" in kind else kind
            names = [(f"{number}.{name}", p) for name, p in model.named_parameters()] if number % 2 else None
            optimizer = hvd.DistributedOptimizer(plain, names, **options)
            scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
            x = torch.full((1, 2), hvd.rank() + 1.0)
            model(x).sum().backward()
            optimizer.step()
            scheduler.step()
            stored = io.BytesIO()
            torch.save((model, optimizer, scheduler), stored)
            stored.seek(0)
            deep_copy = copy.deepcopy((model, optimizer, scheduler))
            loaded = torch.load(stored, weights_only=False)
            results = []
            for its_model, its_optimizer, its_scheduler in ((model, optimizer, scheduler), deep_copy, loaded):
                assert type(its_optimizer).__mro__[1:] == type(optimizer).__mro__[1:]
                assert its_optimizer.param_groups[0]["params"][0] is its_model.weight
                its_optimizer.zero_grad()
                its_model(x).sum().backward()
                its_optimizer.step()
                its_scheduler.step()
                assert its_optimizer.param_groups[0]["lr"] == 0.125
                results.append(its_model.weight.detach())
            gathered = hvd.allgather(torch.stack(results))
            assert all(torch.equal(each, gathered[0]) for each in gathered), (options, gathered)
            # The deep copy has tensor names of its own, so both optimizers can be in flight together.
            (model(x) + deep_copy[0](x)).sum().backward()
            optimizer.step()
            deep_copy[1].step()
            with pytest.raises(NotImplementedError, match=r"copy.deepcopy\(\(model, optimizer\)\)"):
                copy.copy(optimizer)
        return pickle.dumps((model, optimizer))

    def train_pickled(stored):
        with pytest.raises(ValueError, match="has not been initialized"):
            pickle.loads(stored)
        hvd.init()
        model, optimizer = pickle.loads(stored)
        optimizer.zero_grad()
        model(torch.full((1, 2), hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
        check_equal_on_all_ranks([model.weight])

    stored = run_ranks(train_copies, size)[0]
    run_ranks(train_pickled, 2, args=(stored,))  # another job, also of another size
