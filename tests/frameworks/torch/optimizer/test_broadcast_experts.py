"""Broadcasts of models and optimizers with experts: each expert from the lowest rank that holds it."""

from __future__ import annotations

import horocache.torch as hvd
import pytest
import torch
from horocache.torch.moe import mark_expert
from ranks import on_ranks

from horocache.errors import InvalidArgumentError, MismatchError, UnsupportedError

from .. import experts

ROOT = 1


def source(part, name):
    """The rank whose values all holders get: the root for shared parameters."""
    return ROOT if name.startswith("shared") else part.holders[name][0]


@on_ranks(2, 3, 4, init=False)
def test_parameters_of_experts_come_from_the_lowest_holder():
    sets = experts.start()
    for count, backwards in enumerate((False, hvd.rank() == 1, False, False)):
        part = experts.Part(sets, fill=float(hvd.rank() + 1), backwards=backwards)
        module = torch.nn.ParameterDict({name.replace(".", "_"): param for name, param in part.named})
        kinds = (
            module.state_dict(),  # detached: the marks are found by the memory
            part.named,
            list(part.params.values()),  # without names
            module.state_dict(keep_vars=True),
        )
        hvd.broadcast_parameters(kinds[count], ROOT)
        for name, param in part.named:
            assert param.tolist() == [float(source(part, name) + 1)] * len(param), name


@on_ranks(2, 4, init=False)
def test_state_and_options_of_experts_come_from_the_lowest_holder():
    sets = experts.start()
    rank = hvd.rank()
    for kind in ("one group", "groups of experts", "empty group"):
        for distributed in (False, True):
            part = experts.Part(sets, fill=1.0)
            held, shared = part.experts(), part.shared()
            groups = [{"params": [param for _, param in part.named]}]
            if kind != "one group":
                groups = [{"params": [param]} for param in held] + [{"params": shared}]
            if kind == "empty group" and not held:
                groups = [{"params": []}, *groups]
            for group in groups:
                group["lr"] = 0.25 * (rank + 1)
            optimizer = torch.optim.Adam(groups)
            for _, param in part.named:  # steps of this rank's own
                param.grad = torch.full_like(param, 2.0 * (rank + 1))
            optimizer.step()
            if rank != ROOT:
                for param in shared:
                    del optimizer.state[param]
            if distributed:
                optimizer = hvd.DistributedOptimizer(optimizer, part.named)
            hvd.broadcast_optimizer_state(optimizer, ROOT)
            for name, param in part.named:
                state = optimizer.state[param]
                wanted = torch.full_like(param, 0.1 * 2.0 * (source(part, name) + 1))
                assert torch.allclose(state["exp_avg"], wanted), (kind, name, state)
                assert state["step"].item() == 1
                (group,) = [each for each in optimizer.param_groups if any(param is p for p in each["params"])]
                origin = ROOT if kind == "one group" else source(part, name)
                assert group["lr"] == 0.25 * (origin + 1), (kind, name)


@on_ranks(3, init=False)
def test_experts_that_do_not_fit_together_are_errors_on_all_holders():
    pair = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[pair])
    rank = hvd.rank()
    shared, expert = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(2 + rank))
    params = [shared]
    if pair.included():
        mark_expert(expert, pair)
        params.append(expert)
        with pytest.raises(MismatchError, match=r"'parameter\.expert\.0'"):
            hvd.broadcast_parameters(params, 0)
        with pytest.raises(InvalidArgumentError, match=r"rank 2 has .*4.*; rank 0 has .*2.*must have them in the same"):
            hvd.broadcast_optimizer_state(torch.optim.SGD(params, lr=1.0), 0)
        mark_expert(expert, hvd.global_process_set)
        with pytest.raises(InvalidArgumentError, match="the expert's parameter e is held by"):
            hvd.broadcast_parameters([("e", expert)], 0, pair)
        mark_expert(expert, pair)
    else:
        hvd.broadcast_parameters(params, 0)
        hvd.broadcast_optimizer_state(torch.optim.SGD(params, lr=1.0), 0)

    class Counting(torch.optim.SGD):
        def state_dict(self):
            return {**super().state_dict(), "count": 3}

        def load_state_dict(self, state):
            super().load_state_dict(state)

    with pytest.raises(UnsupportedError, match=r"Counting has state of its own, \['count', 'param_groups', 'state'\]"):
        hvd.broadcast_optimizer_state(Counting(params, lr=1.0), 0)
    with pytest.raises(
        InvalidArgumentError, match="rank 1 has SGD with 2 parameters; the root, rank 0, has SGD with 1"
    ):
        hvd.broadcast_optimizer_state(
            torch.optim.SGD([*params, torch.nn.Parameter(torch.ones(1))] if rank == 1 else params, lr=1.0), 0
        )
