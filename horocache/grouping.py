"""How gradients are split into groups. Pure; the same inputs give the same groups on every rank."""

from __future__ import annotations

from collections.abc import Sequence


def split_by_bytes(order: Sequence[int], sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Cut an order into runs of about equal bytes.

    Args:
        order: the items, in the order in which they become ready.
        sizes: bytes of each item, by item number.
        groups: how many runs are wanted. There are fewer if there are fewer items, or if one item is larger than a
            run's share.

    Returns:
        The runs, in order, none of them empty.
    """
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
