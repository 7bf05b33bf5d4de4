"""The optimum over all set partitions, by dynamic programming over subsets of the devices."""

from __future__ import annotations

import math

import numpy as np

from horocache.moe.placement.model import Group, Model
from horocache.moe.placement.topology import Floats, Integers


def members(mask: int) -> Group:
    """Return the numbers of the bits that are set."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def subset_costs(model: Model) -> Floats:
    """Return the cost of every set of devices by its bit mask, in seconds per step; infinite where it is infeasible."""
    costs = np.full(1 << model.devices, math.inf)
    for mask in range(1, 1 << model.devices):
        costs[mask] = model.cost(members(mask)).seconds
    return costs


def _submasks(mask: int) -> Integers:
    found = np.zeros(1, np.int64)
    for bit in members(mask):
        found = np.concatenate([found, found | 1 << bit])
    return found


class _Bottlenecks:
    """The partitions of blocks into k groups whose most expensive group is as cheap as possible, for every k.

    ``_best[s, k]`` is the cost of that group for the set s of blocks. The group of the lowest block of s is one of the
    subsets t of s, so ``_best[s, k]`` is the minimum over t of max(cost(t), _best[s - t, k - 1]).

    Args:
        blocks: disjoint sets of devices that stay together, as bit masks.
        costs: the cost of every set of devices.
    """

    def __init__(self, blocks: tuple[int, ...], costs: Floats) -> None:
        size = 1 << len(blocks)
        self._devices = np.zeros(size, np.int64)  # by set of blocks
        for number, block in enumerate(blocks):
            self._devices[1 << number : 2 << number] = self._devices[: 1 << number] | block
        self._costs = costs[self._devices]
        self._best = np.full((size, len(blocks) + 1), math.inf)
        self._best[0, 0] = -math.inf
        for each in range(1, size):
            first = self._groups_of_the_lowest(each)
            ways = np.maximum(self._costs[first, None], self._best[each ^ first, :-1])
            if len(first):
                self._best[each, 1:] = ways.min(axis=0)

    def _groups_of_the_lowest(self, blocks: int) -> Integers:
        lowest = blocks & -blocks
        groups: Integers = lowest | _submasks(blocks ^ lowest)
        feasible: Integers = groups[np.isfinite(self._costs[groups])]
        return feasible

    def seconds(self, groups: int) -> float:
        """Return the cost of the most expensive group; infinity if there is no such partition."""
        return float(self._best[-1, groups])

    def partition(self, groups: int) -> list[Group]:
        """Return a partition of that cost."""
        found = []
        left = len(self._best) - 1
        for k in range(groups, 0, -1):
            first = self._groups_of_the_lowest(left)
            ways = np.maximum(self._costs[first], self._best[left ^ first, k - 1])
            group = int(first[int(np.argmin(ways))])
            found.append(members(int(self._devices[group])))
            left ^= group
        return found


def _joined(blocks: tuple[int, ...], u: int, v: int) -> tuple[int, ...]:
    """The blocks, of which those of devices u and v have become one."""
    both = [block for block in blocks if block >> u & 1 or block >> v & 1]
    return tuple(sorted([*(block for block in blocks if block not in both), both[0] | both[-1]]))


def solve(model: Model) -> list[Group]:
    """Return a partition of the smallest objective.

    For each number of groups and each link that could be the worst between groups, the devices that a worse link joins
    must be in one group. Under this condition, the search is for a partition whose most expensive group is as cheap as
    possible. With n devices the work grows as 3^n.
    """
    costs = subset_costs(model)
    singles = tuple(1 << i for i in range(model.devices))
    best: list[Group] = [members((1 << model.devices) - 1)]
    objective = float(costs[-1])
    tables: dict[tuple[int, ...], _Bottlenecks] = {}
    for groups in range(2, model.devices + 1):
        links = model.worst_links(groups)
        blocks = singles
        for at, seconds in enumerate(links.seconds.tolist()):
            if at:
                blocks = _joined(blocks, *links.ends[:, at - 1].tolist())
            if len(blocks) < groups:
                break
            if seconds >= objective or (at and seconds == links.seconds[at - 1]):
                continue
            table = tables.get(blocks)
            if table is None:
                table = tables[blocks] = _Bottlenecks(blocks, costs)
            if table.seconds(groups) + seconds < objective:
                objective = table.seconds(groups) + seconds
                best = table.partition(groups)
    return best
