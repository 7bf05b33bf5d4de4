"""Parameters of experts for several test files; ranks cannot import them and receive them by value."""

from __future__ import annotations

import os
import sys

import cloudpickle
import horocache.torch as hvd
import torch
from horocache.torch.moe import mark_expert

cloudpickle.register_pickle_by_value(sys.modules[__name__])

# By number of ranks: the holders of each expert. The last of three or more ranks has no expert.
HOLDERS = {
    1: [[0], [0]],
    2: [[1], [0, 1], [1], [0, 1]],
    3: [[0, 1], [1], [0, 1]],
    4: [[0, 2], [1], [0, 1, 2], [2], [0, 2], [1]],
}
DTYPES = [torch.float64, torch.float32, torch.float64]


def start():
    """Initialize with a process set for each set of holders; return it by its ranks."""
    size = int(os.environ["HOROCACHE_SIZE"])
    wanted = sorted(
        {tuple(ranks) for ranks in HOLDERS[size]} - {(rank,) for rank in range(size)} - {tuple(range(size))}
    )
    made = [hvd.ProcessSet(list(ranks)) for ranks in wanted]
    hvd.init(process_sets=made)
    return {tuple(range(size)): hvd.global_process_set, **dict(zip(wanted, made, strict=True))}


class Part:
    """A rank's part of a model: three shared parameters, and two for each of its experts, between them.

    A parameter's name has the expert's number. ``named`` are the pairs in the order of the rank's own model.
    """

    def __init__(self, sets, rows=2, fill=1.0, backwards=False):
        self.size = hvd.size()
        self.params = {}
        self.holders = {}
        for number in range(3):
            self._add(f"shared{number}", list(range(self.size)), rows + number, DTYPES[number], fill)
            if number == 1:
                experts = list(enumerate(HOLDERS[self.size]))
                for expert, holders in reversed(experts) if backwards else experts:
                    if hvd.rank() in holders:
                        for part in range(2):
                            name = f"expert{expert}.{part}"
                            param = self._add(name, holders, rows + expert, DTYPES[part], fill)
                            mark_expert(param, sets[tuple(holders)] if len(holders) > 1 else None)
        self.named = list(self.params.items())

    def _add(self, name, holders, rows, dtype, fill):
        self.holders[name] = holders
        self.params[name] = torch.nn.Parameter(torch.full((rows,), fill, dtype=dtype))
        return self.params[name]

    def experts(self):
        """The parameters of experts."""
        return [param for name, param in self.named if name.startswith("expert")]

    def shared(self):
        """The other parameters."""
        return [param for name, param in self.named if name.startswith("shared")]


def wanted_everywhere(step, name, rank):
    """Return True: every rank uses every parameter."""
    return True


def slope(name, step, rank):
    """The gradient of a rank's loss by each element of a parameter, a small whole number."""
    return float((sum(map(ord, name)) * 7 + step * 3 + rank * 5) % 11 - 5)


def backward(part, step, uses=wanted_everywhere):
    """Run one backward pass of this rank's loss, in which it uses some of its parameters."""
    rank = hvd.rank()
    used = [(param * slope(name, step, rank)).sum().double() for name, param in part.named if uses(step, name, rank)]
    if used:
        sum(used).backward()


def wanted_gradient(part, name, step, uses=wanted_everywhere):
    """The gradient that one process would compute for the mean of all ranks' losses; None if no rank uses it."""
    slopes = [slope(name, step, rank) for rank in part.holders[name] if uses(step, name, rank)]
    return sum(slopes) / part.size if slopes else None
