"""How gradients are split into groups. Pure; the same inputs give the same groups on every rank."""

from __future__ import annotations

from collections.abc import Sequence

# How many times the bytes of the first run, or of the last, one between them has.
_INNER_BYTES = 4


def split_by_bytes(order: Sequence[int], sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Cut an order into runs of about equal bytes, of which the first and the last are small.

    The first run is what the network waits for, and nothing is left to hide the last one behind. So of three runs and
    more each of these two has about a quarter of the bytes of one between them, and one item at least.

    Args:
        order: the items, in the order in which they become ready.
        sizes: bytes of each item, by item number.
        groups: how many runs are wanted. There are fewer if there are fewer items, or if one item is larger than a
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
    """How many items from the beginning make one of so many equal shares of the total; one at least."""
    before = 0
    for count, item in enumerate(order):
        # An item belongs where its middle byte falls.
        if (2 * before + sizes[item]) * shares >= 2 * total:
            return max(count, 1)
        before += sizes[item]
    return max(len(order), 1)


def _split_evenly(order: Sequence[int], sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Cut an order into runs of about equal bytes."""
    total = sum(sizes[item] for item in order)
    if total == 0:
        return split_by_count(order, groups)
    runs: list[list[int]] = [[] for _ in range(groups)]
    before = 0
    for item in order:
        # An item belongs where its middle byte falls; middles ascend, so runs are contiguous.
        middle_twice = 2 * before + sizes[item]
        runs[min(groups - 1, middle_twice * groups // (2 * total))].append(item)
        before += sizes[item]
    return [run for run in runs if run]


def split_by_count(order: Sequence[int], groups: int) -> list[list[int]]:
    """Cut an order into runs of equal length; the first ones are one longer if it does not come out even."""
    each, more = divmod(len(order), groups)
    runs = []
    start = 0
    for number in range(groups):
        end = start + each + (number < more)
        runs.append(list(order[start:end]))
        start = end
    return [run for run in runs if run]


def complete_order(measured: Sequence[int], count: int) -> list[int]:
    """A full order from a measured one: what was not seen comes last, the latest registered first.

    Args:
        measured: item numbers in the order in which they became ready; of repetitions the first counts.
        count: how many items there are.
    """
    return list(dict.fromkeys([*measured, *reversed(range(count))]))


def priorities(groups: Sequence[Sequence[int]], used: Sequence[int]) -> list[int]:
    """A number for each group, from 1 on: the sooner one of its items is used, the higher.

    Args:
        groups: item numbers.
        used: item numbers in the order in which they are needed; what is not in it is needed last.
    """
    place = {item: number for number, item in enumerate(used)}
    soonest = [min((place.get(item, len(used)) for item in group), default=len(used)) for group in groups]
    result = [0] * len(groups)
    for sooner, group in enumerate(sorted(range(len(groups)), key=soonest.__getitem__)):
        result[group] = len(groups) - sooner
    return result
