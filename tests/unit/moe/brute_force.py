"""The sharding problem by its definitions: every partition of the devices, with loops over devices and links."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for rest_partition in partitions(rest):
        yield [[first], *rest_partition]
        for at, group in enumerate(rest_partition):
            yield [*rest_partition[:at], [first, *group], *rest_partition[at + 1 :]]


def computation(rates, memory, experts):
    """The smallest T with the sum of min(m_i, floor(rate_i T)) at least the number of experts; None without memory."""
    for seconds in sorted(k / rate for rate, most in zip(rates, memory, strict=True) for k in range(1, most + 1)):
        if sum(min(m, math.floor(r * seconds * (1 + 1e-12))) for r, m in zip(rates, memory, strict=True)) >= experts:
            return seconds
    return None


def communication(topology, work, group):
    slowest = 0.0
    for i in group:
        seconds = 0.0
        for j in group:
            if j != i:
                share = work.exchanged_bytes / len(group)
                seconds += topology.alpha_s[i, j] + topology.beta_s_per_byte[i, j] * share
        slowest = max(slowest, work.transfers * seconds)
    return slowest


def allreduce(topology, work, groups):
    count = len(groups)
    worst = 0.0
    for one, other in itertools.permutations(groups, 2):
        for i, j in itertools.product(one, other):
            link = topology.alpha_s[i, j] + topology.beta_s_per_byte[i, j] * work.gradient_bytes / count
            worst = max(worst, link)
    return 2 * (count - 1) * worst


def group_seconds(topology, work, group):
    """The cost of a group in a step; None if it cannot hold all experts."""
    rates, memory = topology.rates[list(group)].tolist(), topology.memory[list(group)].tolist()
    slowest = computation(rates, memory, work.experts)
    return None if slowest is None else work.layers * (slowest + communication(topology, work, group))


def optimum(topology, work):
    """The smallest objective of all partitions; infinity if none is feasible."""
    best = math.inf
    costs = {}
    for groups in partitions(list(range(len(topology.rates)))):
        for group in map(tuple, groups):
            if group not in costs:
                costs[group] = group_seconds(topology, work, group)
        seconds = [costs[tuple(group)] for group in groups]
        if None not in seconds and max(seconds) < best:
            best = min(best, max(seconds) + allreduce(topology, work, groups))
    return best


def best_placement(loads, rates, memory):
    """The smallest time of the last device over all placements of experts."""
    best = math.inf
    for devices in itertools.product(range(len(rates)), repeat=len(loads)):
        if (np.bincount(devices, minlength=len(rates)) <= memory).all():
            best = min(best, (np.bincount(devices, weights=loads, minlength=len(rates)) / rates).max())
    return best
