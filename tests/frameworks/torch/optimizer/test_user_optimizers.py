"""Optimizers that the program defines: arguments of their methods, wrappers that are not optimizers, and copies."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import sys

import cloudpickle
import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks as run

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Plain(torch.optim.SGD):
    """Its methods take no arguments."""

    def zero_grad(self):
        super().zero_grad(set_to_none=False)

    def step(self):
        return super().step()


class Generous(torch.optim.SGD):
    """Its methods take additional arguments."""

    def zero_grad(self, set_to_none=True, *, log=None):
        log.append("zero_grad")
        super().zero_grad(set_to_none)

    def step(self, closure=None, scale=1.0, *, log):
        log.append(("step", closure is not None, scale))
        return super().step(closure)


class Noam:
    """The usual learning-rate wrapper of papers: not an Optimizer, though it has an optimizer's groups."""

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
def test_methods_of_the_programs_optimizer_get_what_they_were_given():
    for op in (hvd.Average, hvd.Adasum):
        model = torch.nn.Linear(2, 2)
        before = model.weight.detach().clone()

        def backward(model=model):
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            return loss

        plain = hvd.DistributedOptimizer(Plain(model.parameters(), lr=0.5), model.named_parameters(), op=op)
        backward()
        plain.step()
        plain.zero_grad()
        assert model.weight.grad.count_nonzero() == 0
        torch.testing.assert_close(model.weight.detach(), before - 0.5)
        backward()
        plain.synchronize()
        if op != hvd.Adasum:
            with plain.skip_synchronize():
                plain.step()
        assert not inspect.signature(plain.zero_grad).parameters and not inspect.signature(plain.step).parameters
        with pytest.raises(TypeError):
            plain.zero_grad(True)
        del plain

        log = []
        model.zero_grad()
        more = hvd.DistributedOptimizer(Generous(model.parameters(), lr=0.5), model.named_parameters(), op=op)
        backward()
        more.step(scale=2.0, log=log)
        more.zero_grad(False, log=log)
        more.step(backward, 3.0, log=log)
        more.zero_grad(log=log)
        loss = more.step(log=log, closure=backward)
        assert loss.numel() == 1 and list(inspect.signature(more.step).parameters) == ["closure", "scale", "log"]
        assert log == [
            ("step", False, 2.0),
            "zero_grad",
            ("step", True, 3.0),
            "zero_grad",
            ("step", True, 1.0),
        ]
        torch.testing.assert_close(model.weight.detach(), before - (1.0 if op == hvd.Adasum else 1.5) - 1.0)


@on_ranks(2)
def test_what_wraps_an_optimizer_and_is_none_goes_around_the_distributed_one():
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
    def body():
        import horocache.torch as hvd

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
            deep = copy.deepcopy((model, optimizer, scheduler))
            again = torch.load(stored, weights_only=False)
            results = []
            for own, its, rates in ((model, optimizer, scheduler), deep, again):
                assert type(its).__mro__[1:] == type(optimizer).__mro__[1:]
                assert its.param_groups[0]["params"][0] is own.weight
                its.zero_grad()
                own(x).sum().backward()
                its.step()
                rates.step()
                assert its.param_groups[0]["lr"] == 0.125
                results.append(own.weight.detach())
            gathered = hvd.allgather(torch.stack(results))
            assert all(torch.equal(each, gathered[0]) for each in gathered), (options, gathered)
            # The first copy has its own tensor names, so both can be used at once.
            (model(x) + deep[0](x)).sum().backward()
            optimizer.step()
            deep[1].step()
            with pytest.raises(NotImplementedError, match=r"copy.deepcopy\(\(model, optimizer\)\)"):
                copy.copy(optimizer)
        return pickle.dumps((model, optimizer))

    (stored, *_) = run(body, size)

    def later():
        import horocache.torch as hvd

        with pytest.raises(ValueError, match="has not been initialized"):
            pickle.loads(stored)
        hvd.init()
        model, optimizer = pickle.loads(stored)
        optimizer.zero_grad()
        model(torch.full((1, 2), hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
        return model.weight.tolist()

    answers = run(later, 2)
    assert answers[0] == answers[1]
