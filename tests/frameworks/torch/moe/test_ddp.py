"""Modules with experts in DDP, against one process that trains on the mean of all ranks' losses."""

from __future__ import annotations

import copy
import datetime

import horocache.torch as hvd
import pytest
import torch
import torch.distributed as dist
from horocache.torch.moe import mark_expert, prepare_ddp
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

from horocache.errors import InvalidArgumentError

from .. import experts

LIMIT = datetime.timedelta(seconds=30)


class Loss(torch.nn.Module):
    """The loss of a rank as a module: each parameter's elements times a whole number."""

    def __init__(self, part):
        super().__init__()
        self.part = [name for name, _ in part.named]
        for name, param in part.named:
            self.register_parameter(name.replace(".", "_"), param)
        self.register_buffer("rank", torch.tensor(hvd.rank()))
        mark_expert(self.rank)  # of an expert of this rank, so DDP must not broadcast it

    def forward(self, step, uses):
        rank = hvd.rank()
        used = [name for name in self.part if uses(step, name, rank)]
        values = [
            (self.get_parameter(name.replace(".", "_")) * experts.slope(name, step, rank)).sum().double()
            for name in used
        ]
        return torch.stack(values).sum()


def not_all_experts(step, name, rank):
    """Every rank uses the shared parameters, and each expert in some steps on some ranks."""
    return name.startswith("shared") or (step + rank + len(name) + int(name[6])) % 3 != 0


def check(part, steps, uses, where):
    for name, param in part.named:
        wanted = [experts.wanted_gradient(part, name, step, uses) for step in steps]
        wanted = sum(value for value in wanted if value is not None)
        assert torch.allclose(param.grad, torch.full_like(param, wanted)), f"{where}, {name}: {param.grad}, {wanted}"


def train(sets, uses, **options):
    part = experts.Part(sets, fill=float(hvd.rank() + 1), backwards=hvd.rank() == 1)
    module = Loss(part)
    model = DistributedDataParallel(prepare_ddp(module), **options)
    for name, param in part.named:  # the lowest holder's values
        assert param.tolist() == [float(part.holders[name][0] + 1)] * len(param), name
    for step in range(3):
        model.zero_grad(set_to_none=step < 2)
        model(step, uses).backward()
        check(part, [step], uses, f"step {step}")
    model.zero_grad()
    with model.no_sync():
        model(3, uses).backward()
        for name, param in part.named:  # only this rank's
            if uses(3, name, hvd.rank()):
                assert param.grad[0].item() == experts.slope(name, 3, hvd.rank()), name
    model(4, uses).backward()
    check(part, [3, 4], uses, "two passes, one without synchronization")
    model(5, uses).backward()
    check(part, [3, 4, 5], uses, "accumulated onto reduced gradients")
    assert module.rank.item() == hvd.rank()
    copied = copy.deepcopy(module)
    copied(0, uses).backward()  # a copy is not prepared, and reduces nothing
    assert copied.get_parameter("shared0").grad[0].item() == experts.slope("shared0", 0, hvd.rank())
    return model


@on_ranks(1, 2, 4, init=False)
def test_gradients_of_experts_in_ddp_are_those_of_one_process(tmp_path):
    sets = experts.start()
    for backend in ("gloo", "horocache"):
        dist.init_process_group(backend, f"file://{tmp_path}/{backend}", LIMIT, rank=hvd.rank(), world_size=hvd.size())
        train(sets, experts.wanted_everywhere)
        train(sets, not_all_experts, static_graph=False)
        train(sets, not_all_experts, bucket_cap_mb=0.0001, gradient_as_bucket_view=True)
        model = train(sets, experts.wanted_everywhere)
        model.register_comm_hook(None, hvd.ddp_hook)
        model.zero_grad()
        model(7, experts.wanted_everywhere).backward()
        del model  # before its group: torch's destructors may wait for each other otherwise
        dist.destroy_process_group()


@on_ranks(2, init=False)
def test_mistakes_with_ddp_are_errors_that_tell_what_to_do(tmp_path):
    hvd.init()
    dist.init_process_group("gloo", f"file://{tmp_path}/store", LIMIT, rank=hvd.rank(), world_size=2)
    expert = torch.nn.Linear(2, 1, bias=False)
    mark_expert(expert.weight, hvd.global_process_set)
    outer = DistributedDataParallel(torch.nn.Sequential(prepare_ddp(prepare_ddp(expert))))
    with pytest.raises(
        InvalidArgumentError, match="was given a Linear, and DistributedDataParallel wraps a Sequential"
    ):
        outer(torch.ones(2))
    with pytest.raises(InvalidArgumentError, match="takes the module before it is wrapped"):
        prepare_ddp(outer)
    other = torch.nn.ModuleDict({f"expert{hvd.rank()}": expert})
    with pytest.raises(InvalidArgumentError, match=r"rank 1 has 'expert1.weight'.*where rank 0 has 'expert0.weight'"):
        prepare_ddp(other)
    table = torch.nn.Embedding(3, 2, sparse=True)
    mark_expert(table.weight)
    model = DistributedDataParallel(prepare_ddp(torch.nn.Sequential(table, torch.nn.Linear(2, 1))))
    with pytest.raises(Exception, match="is sparse, and prepare_ddp"):
        model(torch.tensor([1])).sum().backward()
    del outer, model  # before their group: as above
    dist.destroy_process_group()
