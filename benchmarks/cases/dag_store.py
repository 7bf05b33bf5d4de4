"""The cost of a key-value store's ``pushpull`` over the daemon's own calls, for many keys and for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.figures import Series
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate, check

OURS, DAEMON = "KVStore.pushpull", "daemon's own calls"


def measure(rank: Rank, counts: list[int], elements: int, repetitions: int, budget_s: float) -> list[Series]:
    """Measure steps of several numbers of keys.

    Args:
        rank: this rank.
        counts: numbers of keys of a step, which is pushed whole and then waited for.
        elements: of each key's float32 tensor.
        repetitions: the most steps of each.
        budget_s: for the steps of one number of keys.
    """
    import horocache as hc
    from horocache import kvstore

    rank.horocache()
    series = []
    for count in counts:
        store = kvstore.create("negotiated", blocking=False)
        contestants = _contestants(rank, hc, store, count, elements)
        check(rank.page, contestants)
        times = alternate(rank.page, contestants, repetitions=repetitions, budget_s=budget_s, warm_up=5)
        store.close()
        detail = {"keys": count, "elements": elements}
        series += [
            Series(
                f"{count} keys of {elements} float32",
                name,
                "us",
                [seconds / count for seconds in one.seconds],
                cpu_seconds=[seconds / count for seconds in one.cpu_seconds],
                detail=detail,
            )
            for name, one in times.items()
        ]
    return series


def _contestants(rank: Rank, hc: Any, store: Any, count: int, elements: int) -> list[Contestant]:
    import numpy as np

    keys = [f"key {number}" for number in range(count)]
    names = [f"own {count} {number}" for number in range(count)]
    tensors = [np.ones(elements, np.float32) for _ in keys]
    store.init(keys, tensors)

    def ours() -> None:
        store.pushpull(keys, tensors)
        store.wait(*tensors)

    def daemon() -> None:
        handles = [
            hc.allreduce_async_(tensor, op=hc.Sum, name=name) for tensor, name in zip(tensors, names, strict=True)
        ]
        hc.synchronize(handles)

    def prepare() -> None:
        for tensor in tensors:
            tensor.fill(1.0)

    def wrong() -> int:
        return sum(int((tensor != rank.size).sum()) for tensor in tensors)

    def of(name: str, run: Callable[[], None]) -> Contestant:
        return Contestant(name, run, prepare, wrong=wrong)

    return [of(OURS, ours), of(DAEMON, daemon)]
