"""Models, data and checks for several test files; ranks cannot import them and receive them by value."""

from __future__ import annotations

import sys

import cloudpickle
import horocache.torch as hvd
import torch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def make_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 8, bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(8, 3),
    ).double()


def batch(step, rank, rows=4):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (rows,), generator=generator)


def parameters(count):
    """``count`` parameters of two ones each, and their (name, parameter) pairs p0, p1, ..."""
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]
    return params, [(f"p{i}", param) for i, param in enumerate(params)]


def table_and_head():
    """An embedding with a sparse gradient and a linear layer on it, all weights 1, and their named parameters."""
    table = torch.nn.Embedding(4, 2, sparse=True)
    head = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(table.weight)
    torch.nn.init.ones_(head.weight)
    return table, head, [("table", table.weight), ("head", head.weight)]


def group_names(optimizer):
    """The names of the parameters in each bucket of a distributed optimizer."""
    return [[gradient.name for gradient in bucket.gradients] for bucket in optimizer.debug_state().buckets]


def check_groups(groups, count, parameters):
    """Check that there are ``count`` groups and that each of ``parameters`` parameters is in exactly one of them."""
    names = sorted(name for group in groups for name in group)
    assert (len(groups), names) == (count, [f"p{i}" for i in range(parameters)]), groups


def check_equal_on_all_ranks(tensors):
    """Check that tensors of one type have the same bits on all ranks."""
    everyone = hvd.allgather(torch.cat([tensor.detach().flatten() for tensor in tensors]).unsqueeze(0))
    assert all(torch.equal(everyone[0], other) for other in everyone), everyone
