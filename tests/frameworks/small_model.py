"""Models, parameters and data that several tests train with. Ranks get it by value: they cannot import it."""

from __future__ import annotations

import sys

import cloudpickle
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
    """Parameters of two ones each, and their names p0, p1, ..."""
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]
    return params, [(f"p{i}", param) for i, param in enumerate(params)]


def table_and_head():
    """A table whose gradient is sparse and a layer on it, both of ones, and their names."""
    table = torch.nn.Embedding(4, 2, sparse=True)
    head = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(table.weight)
    torch.nn.init.ones_(head.weight)
    return table, head, [("table", table.weight), ("head", head.weight)]


def group_names(optimizer):
    return [[slot.name for slot in bucket.slots] for bucket in optimizer._reducer._buckets]


def check_groups(groups, count, parameters):
    """There are so many groups, and each parameter is in one of them."""
    names = sorted(name for group in groups for name in group)
    assert (len(groups), names) == (count, [f"p{i}" for i in range(parameters)]), groups
