"""The cost of a sharding: equation 1 of Aristos (section 4), with the terms that the paper leaves open.

docs/explanation/expert_placement.md has the definitions.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from horocache.errors import InvalidArgumentError
from horocache.moe.placement.errors import missing_memory
from horocache.moe.placement.topology import Floats, Integers, Topology, Workload

Group = tuple[int, ...]  # devices, in ascending order


@dataclass(frozen=True)
class GroupCost:
    """The cost of a group in a step.

    Attributes:
        computation: kappa * pi(g), in seconds per step.
        communication: kappa * the largest C_i of the group's devices, in seconds per step.
    """

    computation: float
    communication: float

    @property
    def seconds(self) -> float:
        """Both parts, in seconds per step."""
        return self.computation + self.communication


INFEASIBLE = GroupCost(math.inf, math.inf)


class WorstLinks(NamedTuple):
    """The links of which one is the worst between the groups, whatever the groups are, from the worst to the best.

    Attributes:
        ends: int64, shape (2, n-1). The devices of each link.
        seconds: float64, shape (n-1,). The allreduce of a step, if this link is the worst between groups.
    """

    ends: Integers
    seconds: Floats


def equal_counts(rates: Sequence[float], memory: Sequence[int], experts: int) -> list[int]:
    """Return how many equal experts each device computes, so that the last one is ready as early as possible.

    Each expert goes to the device that would be ready first with it, which is optimal for equal experts. Of equal
    devices the first is taken. Example: rates 2 and 1 and 4 experts give 3 and 1, ready after 1.5 and 1 s; 2 and 2
    would be ready after 1 and 2 s. Most experts are given out at once: experts that may be cut give a lower bound of
    the time, and the whole experts that a device computes in less than this time are part of every optimum.

    Args:
        rates: experts per second of each device.
        memory: experts that each device can hold; at least ``experts`` together.
        experts: the number of experts.
    """
    counts = _certain_counts(rates, memory, experts)
    heap = [((counts[i] + 1) / rates[i], i) for i in range(len(rates)) if counts[i] < memory[i]]
    heapq.heapify(heap)
    for _ in range(experts - sum(counts)):
        _, i = heap[0]
        counts[i] += 1
        if counts[i] < memory[i]:
            heapq.heapreplace(heap, ((counts[i] + 1) / rates[i], i))
        else:
            heapq.heappop(heap)
    return counts


def _certain_counts(rates: Sequence[float], memory: Sequence[int], experts: int) -> list[int]:
    """The experts that each device has in every optimum of :func:`equal_counts`, apart from one or two."""
    counts = list(memory)
    unfilled = [i for i, room in enumerate(memory) if room]
    left = experts
    while True:
        total = sum(rates[i] for i in unfilled)
        seconds = left / total if unfilled else 0.0
        full = {i for i in unfilled if memory[i] <= rates[i] * seconds}
        if not full:
            break
        left -= sum(memory[i] for i in full)
        unfilled = [i for i in unfilled if i not in full]
    for i in unfilled:
        # One less than the time allows, so that rounding cannot give one too many.
        counts[i] = max(0, math.floor(rates[i] * seconds) - 1)
    return counts


def spanning_tree(weights: Floats) -> list[tuple[int, int]]:
    """Return a spanning tree of smallest total weight of a complete graph, by Prim's algorithm.

    Args:
        weights: float64, shape (n, n), symmetric.

    Returns:
        n-1 edges ``(u, v)`` with u < v, from the smallest weight to the largest.
    """
    n = len(weights)
    nearest = np.zeros(n, np.int64)  # the vertex of the tree that is nearest to each vertex
    distance = weights[0].copy()
    outside = np.ones(n, np.bool_)
    outside[0] = False
    edges = []
    for _ in range(n - 1):
        v = int(np.argmin(np.where(outside, distance, np.inf)))
        u = int(nearest[v])
        edges.append((float(weights[u, v]), min(u, v), max(u, v)))
        outside[v] = False
        closer = weights[v] < distance
        nearest[closer] = v
        distance = np.minimum(distance, weights[v])
    return [(u, v) for _, u, v in sorted(edges)]


class Model:
    """The costs of groups and of partitions of the devices into groups, in seconds per step.

    Args:
        topology: the devices.
        workload: the work of a step.

    Raises:
        PlacementError: all devices together cannot hold all experts.
        InvalidArgumentError: the numbers are so large that a cost is infinite.

    Attributes:
        evaluated: groups whose cost was computed.
        links_read: links that were read for that.
    """

    def __init__(self, topology: Topology, workload: Workload) -> None:
        self.devices = topology.devices
        self.workload = workload
        self.rates: list[float] = np.asarray(topology.rates).tolist()
        self.memory: list[int] = np.asarray(topology.memory).tolist()
        self.evaluated = 0
        self.links_read = 0
        self._alpha: Floats = np.asarray(topology.alpha_s)
        self._beta: Floats = np.asarray(topology.beta_s_per_byte)
        self._slowest = float(self._alpha.max()), float(self._beta.max())
        self._costs: dict[Group, GroupCost] = {}
        self._worst_links: dict[int, WorstLinks] = {}
        if sum(self.memory) < workload.experts:
            raise missing_memory(workload.experts, self.memory)
        self._check_magnitude()

    def _check_magnitude(self) -> None:
        """Refuse numbers whose sums overflow, before a solver compares infinite costs."""
        work = self.workload
        with np.errstate(over="ignore"):
            message = self._alpha.max() + self._beta.max() * max(work.exchanged_bytes, work.gradient_bytes)
            most = 2.0 * self.devices * work.layers * (message * work.transfers + work.experts / min(self.rates))
        if not math.isfinite(most):
            raise InvalidArgumentError(
                "the times of a step are too large to compare: alpha_s, beta_s_per_byte times the bytes, or experts / "
                "rates is near the largest number; use smaller values for devices that are hardly connected."
            )

    def feasible(self, group: Iterable[int]) -> bool:
        """Return whether a group can hold all experts (equation 2)."""
        return sum(self.memory[i] for i in group) >= self.workload.experts

    def counts(self, group: Group) -> list[int]:
        """Return the experts that each device of a feasible group holds."""
        rates, memory = [self.rates[i] for i in group], [self.memory[i] for i in group]
        return equal_counts(rates, memory, self.workload.experts)

    def cost(self, group: Group) -> GroupCost:
        """Return the cost of a group; an infinite one if the group cannot hold all experts."""
        cost = self._costs.get(group)
        if cost is None:
            cost = self._costs[group] = self._cost(group) if self.feasible(group) else INFEASIBLE
        return cost

    def _cost(self, group: Group) -> GroupCost:
        self.evaluated += 1
        self.links_read += len(group) ** 2
        work = self.workload
        computation = max(count / self.rates[i] for count, i in zip(self.counts(group), group, strict=True))
        among = np.ix_(group, group)
        times = self._alpha[among].sum(axis=1) + self._beta[among].sum(axis=1) * (work.exchanged_bytes / len(group))
        return GroupCost(work.layers * computation, work.layers * work.transfers * float(times.max()))

    def worst_links(self, groups: int) -> WorstLinks:
        """Return the links that decide the allreduce between this number of groups.

        These are the links of a maximum spanning tree. The tree joins the two ends of the worst link between groups by
        a path of links that are not faster. One link of the path leads to another group, so it is as slow as the worst
        link. The n-1 links of the tree are therefore enough, whatever the groups are.
        """
        links = self._worst_links.get(groups)
        if links is None:
            one_way = self._alpha + self._beta * (self.workload.gradient_bytes / groups)
            seconds = 2.0 * (groups - 1) * np.maximum(one_way, one_way.T)
            ends = np.array(spanning_tree(-seconds), np.int64).reshape(-1, 2).T
            links = self._worst_links[groups] = WorstLinks(ends, seconds[ends[0], ends[1]])
        return links

    def allreduce(self, partition: Sequence[Group]) -> float:
        """Return T_rho of a partition: the allreduce of the experts' gradients between groups, in seconds per step."""
        if len(partition) == 1:
            return 0.0
        label = np.empty(self.devices, np.int64)
        order = list(itertools.chain.from_iterable(partition))
        label[order] = np.repeat(np.arange(len(partition)), list(map(len, partition)))
        links = self.worst_links(len(partition))
        between = label[links.ends[0]] != label[links.ends[1]]
        return float(links.seconds[int(np.argmax(between))])

    def slowest_allreduce(self, groups: int) -> float:
        """Return a bound of T_rho for any partition into this number of groups, in seconds per step."""
        alpha, beta = self._slowest
        return 2.0 * (groups - 1) * (alpha + beta * self.workload.gradient_bytes / groups)

    def objective(self, partition: Sequence[Group]) -> float:
        """Return equation 1 for a partition, in seconds per step; infinity if a group cannot hold all experts."""
        return max(self.cost(group).seconds for group in partition) + self.allreduce(partition)

    @functools.cached_property
    def link_distances(self) -> Floats:
        """The time of a message of a group of two, the mean of both directions: float64, shape (n, n)."""
        one_way = self._alpha + self._beta * (self.workload.exchanged_bytes / 2)
        return (one_way + one_way.T) / 2
