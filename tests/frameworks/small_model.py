"""A model and data that several tests train with. Ranks get it by value: they cannot import it."""

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
