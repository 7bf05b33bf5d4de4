"""Splits gradients into groups. Pure: the same inputs give the same groups on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

NumGroups = int | Literal["auto"]

# For "auto": the bytes of a group, and the most groups. PyTorch's DDP has buckets of 25 MiB, too. Fewer and larger
# groups of small models cost less per gradient; larger groups of large models would leave more of them exposed.
_AUTO_BYTES = 25 << 20
_AUTO_MOST = 10
# Ratio of the bytes of an inner run to those of the first or the last run.
_INNER_BYTES = 4


def group_count(wanted: NumGroups, sizes: Sequence[int]) -> int:
    """Return the number of groups for gradients of these sizes in bytes; 0 if they are not grouped.

    Args:
        wanted: that number, or "auto": one group for each 25 MiB, at most 10. A group has at least one gradient.
        sizes: bytes of each gradient; 0 if unknown.
    """
    number = max(1, min(-(-sum(sizes) // _AUTO_BYTES), _AUTO_MOST)) if wanted == "auto" else wanted
    return min(number, len(sizes))


def split_by_bytes(order: Sequence[int], sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Split an order into runs of about equal bytes, except that the first and the last run are smaller.

    Communication can only start when the first run is complete, and no computation is left to hide the last run. So
    with three or more runs, each of these two has about a quarter of the bytes of an inner run, and at least one item.
    For example, 10 items of equal size in 4 groups give runs of 1, 4, 4 and 1 items.

    Args:
        order: the items, in the order in which they become ready.
        sizes: bytes of each item, by item number.
        groups: number of runs that are wanted. There are fewer if there are fewer items, or if an item is larger than a
            run's share.

    Returns:
        The runs, in order, none of them empty.
    """
    total = sum(sizes[item] for item in order)
    if groups < 3 or len(order) < 3 or total == 0:
        return _split_evenly(order, sizes, groups)
    shares = _INNER_BYTES * (groups - 2) + 2
    first = _run_of(order, sizes, total, shares)
    last = min(_run_of(order[::-1], sizes, total, shares), len(order) - first)
    inner = order[first : len(order) - last]
    runs = [order[:first], *_split_evenly(inner, sizes, groups - 2), order[len(order) - last :]]
    return [list(run) for run in runs if run]


def _run_of(order: Sequence[int], sizes: Sequence[int], total: int, shares: int) -> int:
    """Return how many items from the beginning make one of ``shares`` equal shares of ``total``; at least one."""
    before = 0
    for count, item in enumerate(order):
        # An item belongs to the share that contains its middle byte.
        if (2 * before + sizes[item]) * shares >= 2 * total:
            return max(count, 1)
        before += sizes[item]
    return max(len(order), 1)


def _split_evenly(order: Sequence[int], sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Split an order into runs of about equal bytes."""
    total = sum(sizes[item] for item in order)
    if total == 0:
        return split_by_count(order, groups)
    runs: list[list[int]] = [[] for _ in range(groups)]
    before = 0
    for item in order:
        # An item belongs to the run that contains its middle byte. Middles ascend, so runs are contiguous.
        middle_twice = 2 * before + sizes[item]
        runs[min(groups - 1, middle_twice * groups // (2 * total))].append(item)
        before += sizes[item]
    return [run for run in runs if run]


def split_by_count(order: Sequence[int], groups: int) -> list[list[int]]:
    """Split an order into runs of equal length; if that is impossible, the first runs are one item longer."""
    each, more = divmod(len(order), groups)
    runs = []
    start = 0
    for number in range(groups):
        end = start + each + (number < more)
        runs.append(list(order[start:end]))
        start = end
    return [run for run in runs if run]


def complete_order(measured: Sequence[int], count: int) -> list[int]:
    """Complete a measured order: items that were not measured come last, the latest registered first.

    Args:
        measured: item numbers in the order in which they became ready; of a repeated item, the first position counts.
        count: number of items.
    """
    return list(dict.fromkeys([*measured, *reversed(range(count))]))


def priorities(groups: Sequence[Sequence[int]], used: Sequence[int]) -> list[int]:
    """Return a priority for each group, from 1 on: the sooner an item of the group is used, the higher.

    Args:
        groups: the item numbers of each group.
        used: item numbers in the order in which they are needed; items that are missing here are needed last.
    """
    place = {item: number for number, item in enumerate(used)}
    soonest = [min((place.get(item, len(used)) for item in group), default=len(used)) for group in groups]
    result = [0] * len(groups)
    for sooner, group in enumerate(sorted(range(len(groups)), key=soonest.__getitem__)):
        result[group] = len(groups) - sooner
    return result
