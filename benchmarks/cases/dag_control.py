"""Operations of an engine that call MPI in the order in which they become ready, and stores in their place.

Two ranks push the same operations in the same order, but their tensors become ready in opposite orders. Two allreduces
on one communicator then add one tensor to the other, without an error. On two communicators, with a thread that blocks
in the first one, both ranks wait for ever: after a time limit, the main threads make the missing calls, so that the
job can end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.figures import Series
from benchmarks.peers import Rank

PLAIN, PATIENCE_S = "mpi4py in operations", 1.0
MIXED, BLOCKED = "one communicator", "two communicators, one thread"
COUNT = 1000
_LIMIT_S = 60.0


def measure(rank: Rank) -> list[Series]:
    """Count wrong elements, and ranks that wait for ever, with MPI and with stores."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank.horocache()
    other = world.Dup()

    def sum_on(communicator: Any) -> Callable[[Any], None]:
        return lambda tensor: communicator.Allreduce(MPI.IN_PLACE, tensor)

    tensors = _tensors(rank)
    _pushed(rank, tensors, [sum_on(world)] * 2)
    found = [_series(MIXED, PLAIN, "wrong elements", _wrong(rank, tensors))]

    tensors = _tensors(rank)
    blocked = _pushed(rank, tensors, [sum_on(world), sum_on(other)], release=True)
    found.append(_series(BLOCKED, PLAIN, "blocked", float(blocked)))
    other.Free()
    for type_ in ("negotiated", "concom"):
        tensors = _tensors(rank)
        name = f"horocache, {type_}"
        blocked = _with_store(rank, tensors, type_)
        found.append(_series(MIXED, name, "wrong elements", _wrong(rank, tensors)))
        found.append(_series(BLOCKED, name, "blocked", float(blocked)))
    return found


def _series(case: str, impl: str, unit: str, value: float) -> Series:
    return Series(case, impl, unit, [float(value)])


def _tensors(rank: Rank) -> list[Any]:
    import numpy as np

    return [np.full(COUNT, base + rank.rank) for base in (1.0, 100.0)]


def _wrong(rank: Rank, tensors: Sequence[Any]) -> int:
    rights = [sum(base + each for each in range(rank.size)) for base in (1.0, 100.0)]
    return sum(int((tensor != right).sum()) for tensor, right in zip(tensors, rights, strict=True))


def _order(rank: Rank) -> list[int]:
    """The tensors in the order in which they become ready."""
    return [0, 1] if rank.rank == 0 else [1, 0]


def _make_ready(rank: Rank, engine: Any, tensors: Sequence[Any], go_on: threading.Event) -> None:
    """Have the tensors become ready in the rank's order, the second one after the event."""
    first, second = _order(rank)
    engine.push(lambda: None, writes=[tensors[first]], priority=1, queue="cpu")
    engine.push(go_on.wait, writes=[tensors[second]], queue="cpu")


def _pushed(rank: Rank, tensors: Sequence[Any], sums: Sequence[Callable[[Any], None]], release: bool = False) -> bool:
    """Sum the tensors by operations with one thread; return True if the ranks waited for each other for ever.

    Args:
        rank: this rank.
        tensors: two tensors.
        sums: what sums each.
        release: they may wait for ever; if they do, they are released after PATIENCE_S.
    """
    from horocache.dag import Engine
    from horocache.errors import StallError

    engine = Engine({"cpu": 1, "comm": 1}, name="control")
    begun, may_go_on = threading.Event(), threading.Event()
    second = tensors[_order(rank)[1]]

    def run(sum_up: Callable[[Any], None], tensor: Any) -> None:
        begun.set()
        if tensor is second:
            may_go_on.wait(_LIMIT_S)
        sum_up(tensor)

    _make_ready(rank, engine, tensors, begun)
    for tensor, sum_up in zip(tensors, sums, strict=True):
        engine.push(partial(run, sum_up, tensor), writes=[tensor], queue="comm")
    blocked = False
    if release:
        rank.page.barrier()
        try:
            engine.wait(tensors[_order(rank)[0]], timeout=PATIENCE_S)
        except StallError:
            blocked = True
        blocked = bool(rank.page.agree(blocked))  # both wait, until a rank goes on from here
        if blocked:
            _release(rank, engine, tensors, sums[0], may_go_on)
    may_go_on.set()
    engine.wait_all(timeout=_LIMIT_S)
    engine.close()
    return blocked


def _release(
    rank: Rank, engine: Any, tensors: Sequence[Any], sum_up: Callable[[Any], None], may_go_on: threading.Event
) -> None:
    """Call what the other rank's thread waits for, on the communicator of the first tensor, one call at a time.

    Rank 0's thread waits for rank 1's sum of the first tensor. When it has that from rank 1's main thread, it goes on
    to the second tensor, for which rank 1's thread waits; and that one then needs rank 0's sum of the first.
    """
    import numpy as np

    if rank.rank == 0:
        may_go_on.set()
        engine.wait(tensors[0], timeout=_LIMIT_S)
    sum_up(np.zeros(COUNT))


def _with_store(rank: Rank, tensors: Sequence[Any], type_: str) -> bool:
    """Sum the tensors by a store; return True if it does not end."""
    from horocache import kvstore
    from horocache.dag import Engine
    from horocache.errors import StallError

    engine = Engine({"cpu": 1, "comm": 2}, name="control")
    store = kvstore.create(type_, engine=engine, blocking=False)
    keys = list(range(len(tensors)))
    store.init(keys, [tensor.copy() for tensor in tensors])
    pushed = threading.Event()
    _make_ready(rank, engine, tensors, pushed)
    store.pushpull(keys, list(tensors))
    pushed.set()
    try:
        store.wait(*tensors, timeout=_LIMIT_S)
    except StallError:
        return True
    store.close()
    engine.close()
    return False
