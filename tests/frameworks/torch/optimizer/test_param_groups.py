"""Parameters that enter or leave a distributed optimizer's groups, also without a call of its methods."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from ranks import on_ranks

from ..small_model import group_names


@on_ranks(2)
def test_adding_a_group_with_gradients_in_flight_raises_and_adds_nothing():
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


@on_ranks(3)
def test_parameters_added_without_a_method_call_are_reduced_in_that_step():
    weight, mean = hvd.rank() + 1.0, sum(rank + 1.0 for rank in range(hvd.size())) / hvd.size()

    def pair():
        return [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]

    # Each adds the parameters `new` to the plain optimizer, or to the distributed one, which has the parameters `old`.
    ways = {
        "the plain optimizer's method": lambda plain, _, old, new: plain.add_param_group({"params": new}),
        "a longer list": lambda _, distributed, old, new: distributed.param_groups[0]["params"].extend(new),
        "one more group": lambda _, distributed, old, new: distributed.param_groups.append(
            {**distributed.param_groups[0], "params": new}
        ),
        "another list": lambda plain, _, old, new: plain.param_groups[0].update(params=[*old, *new]),
        "a frozen parameter, unfrozen later": lambda plain, _, old, new: plain.add_param_group({"params": new}),
    }
    kinds = ({}, {"num_groups": 2}, {"backward_passes_per_step": 2}, {"compression": hvd.Compression.fp16})
    for number, (way, add) in enumerate(ways.items()):
        unfreezes = "unfrozen" in way
        for options in kinds:
            old, new = pair(), pair()
            plain = torch.optim.SGD(old, lr=1.0)
            named = [(f"{number}.{i}", p) for i, p in enumerate(old)] if number % 2 else None
            optimizer = hvd.DistributedOptimizer(plain, named, **options)
            new[0].requires_grad_(not unfreezes)
            passes = options.get("backward_passes_per_step", 1)
            for step in range(3):
                if step == 1:
                    add(plain, optimizer, old, new)
                for _ in range(passes):
                    used = [p for p in (*old, *new) if p.requires_grad]
                    sum((p * weight).sum() for p in used).backward()
                    if step == 0:
                        new[0].grad = new[1].grad = None
                optimizer.step()
                optimizer.zero_grad()
                new[0].requires_grad_(step >= 1 or not unfreezes)
            where = (way, options)
            steps = (3, 3, 1 if unfreezes else 2, 2)
            assert [p.tolist()[0] for p in (*old, *new)] == [-mean * passes * count for count in steps], where
            names = group_names(optimizer)
            assert len(names) == (2 if "num_groups" in options else 4), (*where, names)
            assert hvd.allgather_object(names) == [names] * hvd.size(), where


@on_ranks(2)
def test_a_removed_parameter_may_join_another_optimizer_and_return():
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
    (removed,) = first.param_groups.pop()["params"]
    second = hvd.DistributedOptimizer(torch.optim.SGD([removed], lr=1.0))
    step(first, second)
    # One parameter returns by assignment and replaces another, whose name stays reserved.
    del second
    first.param_groups[0]["params"] = [removed]
    step(first)
    first.add_param_group({"params": [params[0]]})
    step(first)
    names = sorted(name for (name,) in group_names(first))
    assert len(set(names)) == 3
    assert hvd.allgather_object(names) == [names] * 2
    assert [p.tolist()[0] for p in params] == [-1.5 * 3, -1.5 * 4, -1.5 * 4]


@on_ranks(2)
def test_parameters_added_after_synchronize_raise_on_all_ranks():
    old, new = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([old], lr=1.0))
    ((old + new) * (hvd.rank() + 1)).sum().backward()
    optimizer.synchronize()
    optimizer.param_groups[0]["params"].append(new)
    message = r"1 parameters, .* 'noname.0.1' of shape \(2,\), .* synchronize\(\) again"
    with pytest.raises(ValueError, match=message), optimizer.skip_synchronize():
        optimizer.step()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert new.tolist() == [-1.5, -1.5]


@on_ranks(2)
def test_a_gradient_scaler_sees_reduced_gradients_of_added_parameters():
    old, new = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    plain = torch.optim.SGD([old], lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    plain.add_param_group({"params": [new]})
    scaler.scale((new * (float("inf") if hvd.rank() == 1 else 1.0)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert (new.tolist(), scaler.get_scale()) == ([0.0, 0.0], 2.0)
