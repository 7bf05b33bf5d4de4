"""Parameters that enter or leave a wrapped optimizer's groups other than by its own methods."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from horocache.testing import run_ranks as run

from ..small_model import group_names


def test_parameters_that_come_unseen_are_reduced_in_that_very_step():
    def body():
        import horocache.torch as hvd

        hvd.init()
        size, weight = hvd.size(), hvd.rank() + 1.0

        def pair():
            return [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]

        ways = {
            "the plain optimizer's method": lambda plain, d, new: plain.add_param_group({"params": new}),
            "a longer list": lambda plain, d, new: d.param_groups[0]["params"].extend(new),
            "one more group": lambda plain, d, new: d.param_groups.append({**d.param_groups[0], "params": new}),
            "another list": lambda plain, d, new: plain.param_groups[0].update(params=[*old, *new]),
            "a frozen one that thaws": lambda plain, d, new: plain.add_param_group({"params": new}),
        }
        kinds = ({}, {"num_groups": 2}, {"backward_passes_per_step": 2}, {"compression": hvd.Compression.fp16})
        found = {}
        for number, (way, add) in enumerate(ways.items()):
            for options in kinds:
                old, new = pair(), pair()
                plain = torch.optim.SGD(old, lr=1.0)
                named = [(f"{number}.{i}", p) for i, p in enumerate(old)] if number % 2 else None
                optimizer = hvd.DistributedOptimizer(plain, named, **options)
                new[0].requires_grad_("thaws" not in way)
                for step in range(3):
                    if step == 1:
                        add(plain, optimizer, new)
                    for _ in range(options.get("backward_passes_per_step", 1)):
                        used = [p for p in (*old, *new) if p.requires_grad]
                        sum((p * weight).sum() for p in used).backward()
                        if step == 0:
                            new[0].grad = new[1].grad = None
                    optimizer.step()
                    optimizer.zero_grad()
                    new[0].requires_grad_(step >= 1 or "thaws" not in way)
                found[way, tuple(options)] = [p.tolist()[0] for p in (*old, *new)], group_names(optimizer)
        return found, sum(r + 1.0 for r in range(size)) / size

    results = run(body, 3)
    mean = results[0][1]
    for found, _ in results:
        for (way, options), (values, names) in found.items():
            passes = 2 if options == ("backward_passes_per_step",) else 1
            thawed = 1 if "thaws" in way else 2
            assert values == [-mean * passes * steps for steps in (3, 3, thawed, 2)], (way, options)
            assert names == results[0][0][way, options][1]
            assert len(names) == (2 if options == ("num_groups",) else 4), (way, options, names)


def test_parameters_that_leave_are_another_optimizers_at_once_or_nobodys():
    def body():
        import horocache.torch as hvd

        hvd.init()
        weight = hvd.rank() + 1.0
        params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
        first = hvd.DistributedOptimizer(torch.optim.SGD([{"params": [p]} for p in params], lr=1.0))

        def step(*optimizers):
            sum((p * weight).sum() for p in params).backward()
            for optimizer in optimizers:
                optimizer.step()
            for p in params:
                p.grad = None

        step(first)
        (left,) = first.param_groups.pop()["params"]
        second = hvd.DistributedOptimizer(torch.optim.SGD([left], lr=1.0))
        step(first, second)
        # One parameter returns by assignment and replaces another, whose name stays reserved.
        del second
        first.param_groups[0]["params"] = [left]
        step(first)
        first.add_param_group({"params": [params[0]]})
        step(first)
        names = sorted(name for (name,) in group_names(first))
        assert len(set(names)) == 3
        return [p.tolist()[0] for p in params], names

    results = run(body, 2)
    assert results[0] == results[1]
    assert results[0][0] == [-1.5 * 3, -1.5 * 4, -1.5 * 4]


@on_ranks(2)
def test_parameters_that_come_after_the_gradients_were_reduced_are_refused_on_all_ranks():
    old, new = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([old], lr=1.0))
    ((old + new) * (hvd.rank() + 1)).sum().backward()
    optimizer.synchronize()
    optimizer.param_groups[0]["params"].append(new)
    said = r"1 parameters, .* 'noname.0.1' of shape \(2,\), .* synchronize\(\) again"
    with pytest.raises(ValueError, match=said), optimizer.skip_synchronize():
        optimizer.step()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert new.tolist() == [-1.5, -1.5]


@on_ranks(2)
def test_a_gradient_scaler_looks_at_reduced_gradients_of_parameters_that_came_unseen():
    old, new = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    plain = torch.optim.SGD([old], lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    plain.add_param_group({"params": [new]})
    scaler.scale((new * (float("inf") if hvd.rank() == 1 else 1.0)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert (new.tolist(), scaler.get_scale()) == ([0.0, 0.0], 2.0)
