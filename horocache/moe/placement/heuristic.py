"""Groups by merging devices along fast links, then local search; for any number of devices."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from horocache.moe.placement.model import Group, Model, spanning_tree

CANDIDATES_PER_DEVICE = 100  # partitions that the local search evaluates, for up to _DEVICES devices
_DEVICES = 64  # from here on the number of candidates does not grow
_MOST_LINKS = 1 << 26  # links that are read to compute the costs of groups: about 1 s
_PASSES = 4  # along the links when groups merge, at most; the first one leaves no group that lacks memory
_STARTS = 3  # partitions from which the local search begins
_GAIN = 1e-9  # relative; a smaller one is rounding

Partition = tuple[Group, ...]  # in ascending order of the first devices
Edges = Sequence[tuple[int, int]]
Change = tuple[Sequence[Group], Sequence[Sequence[int]]]  # groups of a partition, and the groups that replace them


def _sorted(groups: Sequence[Sequence[int]]) -> Partition:
    return tuple(sorted(tuple(sorted(group)) for group in groups))


class _Groups:
    """Disjoint groups that merge; each device knows its group's list."""

    def __init__(self, devices: int) -> None:
        self.of = [[i] for i in range(devices)]

    def merge(self, u: int, v: int) -> None:
        small, large = sorted((self.of[u], self.of[v]), key=len)
        large += small
        for i in small:
            self.of[i] = large

    def partition(self) -> Partition:
        return _sorted(list({id(group): group for group in self.of}.values()))


def _merged_where_it_pays(model: Model, edges: Edges) -> Partition:
    """Merge along the links of a spanning tree, from the fastest, as long as that pays.

    Two groups merge if one of them cannot hold all experts, or if the merged group and the allreduce between one group
    fewer cost no more than before.
    """
    groups = _Groups(model.devices)
    count = model.devices
    for _ in range(_PASSES):
        before = count
        for u, v in edges:
            a, b = groups.of[u], groups.of[v]
            if a is b or not _pays(model, a, b, count):
                continue
            groups.merge(u, v)
            count -= 1
        if count == before:
            break
    return groups.partition()


def _pays(model: Model, a: list[int], b: list[int], groups: int) -> bool:
    if not (model.feasible(a) and model.feasible(b)):
        return True
    if model.links_read >= _MOST_LINKS:
        return False
    now = max(model.cost(tuple(sorted(each))).seconds for each in (a, b)) + model.slowest_allreduce(groups)
    return model.cost(tuple(sorted(a + b))).seconds + model.slowest_allreduce(groups - 1) <= now


def _cut(model: Model, edges: Edges, groups: int) -> Partition:
    """Cut the slowest links of a spanning tree, so that this number of parts is left; parts that lack memory merge."""
    parts = _Groups(model.devices)
    kept = len(edges) - (groups - 1)
    for u, v in edges[:kept]:
        parts.merge(u, v)
    for u, v in edges[kept:]:
        if not (model.feasible(parts.of[u]) and model.feasible(parts.of[v])):
            parts.merge(u, v)
    return parts.partition()


def _balanced(model: Model, groups: int) -> Partition:
    """Give devices, from the largest memory on, to the group with the least memory, of this number of groups.

    Links do not count: this is a start for topologies whose links are alike, where memory decides.
    """
    parts: list[list[int]] = [[] for _ in range(groups)]
    heap = [(0, number) for number in range(groups)]
    for i in sorted(range(model.devices), key=lambda i: (-model.memory[i], i)):
        memory, number = heapq.heappop(heap)
        parts[number].append(i)
        heapq.heappush(heap, (memory + model.memory[i], number))
    return _sorted(parts)


def _grown(model: Model, devices: Sequence[int], seed: int) -> list[int]:
    """The seed and its nearest devices, as few as can hold all experts."""
    distance = model.link_distances[seed]
    found, room = [seed], model.memory[seed]
    for i in sorted(set(devices) - {seed}, key=lambda i: (distance[i], i)):
        if room >= model.workload.experts:
            break
        found.append(i)
        room += model.memory[i]
    return found


def _small_groups(model: Model) -> Partition:
    """Groups of a device and its nearest ones, as small as their memory allows; the rest joins the nearest groups."""
    left = list(range(model.devices))
    parts: list[list[int]] = []
    far = model.link_distances.sum(axis=1)  # from the devices that are left
    while model.feasible(left):
        # The device that is farthest from the others has the least choice, so it is first.
        part = _grown(model, left, max(left, key=lambda i: (far[i], -i)))
        far = far - model.link_distances[:, part].sum(axis=1)
        taken = set(part)
        left = [i for i in left if i not in taken]
        parts.append(part)
    for i in left:
        distances = model.link_distances[i]
        min(parts, key=lambda part: float(distances[part].mean())).append(i)
    return _sorted(parts)


def _numbers_of_groups(devices: int) -> list[int]:
    """Every number for few devices; for more, numbers that grow by a quarter, as each needs a tree of its own."""
    numbers = [1]
    while numbers[-1] < devices:
        step = 1 if devices <= 12 else max(1, numbers[-1] // 4)
        numbers.append(min(devices, numbers[-1] + step))
    return numbers


class _Search:
    """A local search that changes the most expensive group until no change is better, or a number of steps is done.

    A partition is better if its objective is smaller, or if that is equal and all groups together cost less: where
    several groups are the most expensive ones, the first of them can then change.

    Args:
        model: the costs.
        edges: links of a spanning tree of fast links.
        candidates: partitions that may be evaluated.
    """

    def __init__(self, model: Model, edges: Edges, candidates: int) -> None:
        self._model = model
        self._edges = edges
        self._left = candidates

    def value(self, partition: Partition) -> tuple[float, float]:
        """Return the objective and the sum of all costs."""
        seconds = [self._model.cost(group).seconds for group in partition]
        return max(seconds) + self._model.allreduce(partition), sum(seconds)

    def run(self, partition: Partition) -> Partition:
        """Return the best partition that the search finds from here."""
        value = self.value(partition)
        kinds: tuple[Callable[[Partition, Group], Iterator[Change]], ...] = (
            self._moves,
            self._splits,
            self._merges,
            self._swaps,
        )
        kind = 0
        while kind < len(kinds):
            worst = max(partition, key=lambda group: self._model.cost(group).seconds)
            found = self._best(partition, kinds[kind](partition, worst), value)
            if found is None:
                kind += 1
            else:
                partition, value = found
                kind = 0
        return partition

    def _best(
        self, partition: Partition, changes: Iterator[Change], value: tuple[float, float]
    ) -> tuple[Partition, tuple[float, float]] | None:
        best = None
        for old, new in changes:
            if self._left <= 0 or self._model.links_read >= _MOST_LINKS:
                break
            self._left -= 1
            if not all(map(self._model.feasible, new)):
                continue
            kept = (group for group in partition if group not in old)
            candidate = tuple(sorted([*kept, *(tuple(sorted(group)) for group in new)]))
            reached = self.value(candidate)
            if _better(reached, value):
                best, value = candidate, reached
        return None if best is None else (best, value)

    def _moves(self, partition: Partition, worst: Group) -> Iterator[Change]:
        """A device leaves the most expensive group for another one, or joins it."""
        for other in partition:
            if other == worst:
                continue
            for source, target in ((worst, other), (other, worst)):
                for i in source if len(source) > 1 else ():
                    yield (worst, other), (_without(source, i), (*target, i))

    def _splits(self, partition: Partition, worst: Group) -> Iterator[Change]:
        """The most expensive group splits at a link of its spanning tree, or a device and its nearest ones leave it."""
        edges = self._tree_of(worst)
        for cut in range(len(edges)):
            parts = _Groups(self._model.devices)
            for at, (u, v) in enumerate(edges):
                if at != cut:
                    parts.merge(u, v)
            u, v = edges[cut]
            yield (worst,), (parts.of[u], parts.of[v])
        for seed in worst:
            part = _grown(self._model, worst, seed)
            if len(part) < len(worst):
                yield (worst,), (part, sorted(set(worst) - set(part)))

    def _tree_of(self, group: Group) -> list[tuple[int, int]]:
        edges = spanning_tree(self._model.link_distances[list(group)][:, list(group)])
        return [(group[u], group[v]) for u, v in edges]

    def _merges(self, partition: Partition, worst: Group) -> Iterator[Change]:
        """Two groups that a fast link joins become one; or the most expensive group and another one do."""
        number = {i: at for at, group in enumerate(partition) for i in group}
        pairs = [tuple(sorted((number[u], number[v]))) for u, v in self._edges if number[u] != number[v]]
        at = number[worst[0]]
        pairs += [tuple(sorted((at, other))) for other in range(len(partition)) if other != at]
        for a, b in dict.fromkeys(pairs):
            yield (partition[a], partition[b]), (partition[a] + partition[b],)

    def _swaps(self, partition: Partition, worst: Group) -> Iterator[Change]:
        """A device of the most expensive group and a device of another group change places."""
        for other in partition:
            if other == worst:
                continue
            for i in worst:
                for j in other:
                    yield (worst, other), ((*_without(worst, i), j), (*_without(other, j), i))


def _without(group: Group, device: int) -> Group:
    return tuple(i for i in group if i != device)


def _better(new: tuple[float, float], old: tuple[float, float]) -> bool:
    for a, b in zip(new, old, strict=True):
        if abs(a - b) > _GAIN * max(a, b):
            return a < b
    return False


def solve(model: Model) -> list[Group]:
    """Return a good partition; no bound of its distance from the optimum is known.

    The starts are the merged groups of :func:`_merged_where_it_pays` (after FlashMoE's decider) and the parts of a
    spanning tree of the fastest links without its slowest links, for several numbers of parts. The local search goes on
    from the best ones. It moves, swaps, splits and merges. Its steps are counted, not timed, so that equal arguments
    give equal results.
    """
    devices = model.devices
    edges = spanning_tree(model.link_distances)
    starts = {_merged_where_it_pays(model, edges), _small_groups(model)}
    numbers = _numbers_of_groups(devices)
    starts |= {_cut(model, edges, groups) for groups in numbers}
    starts |= {part for part in (_balanced(model, groups) for groups in numbers) if all(map(model.feasible, part))}
    ranked = sorted(starts, key=lambda each: (model.objective(each), each))[:_STARTS]
    candidates = CANDIDATES_PER_DEVICE * min(devices, _DEVICES) // len(ranked)
    found = [_Search(model, edges, candidates).run(start) for start in ranked]
    return list(min((model.objective(each), each) for each in found)[1])
