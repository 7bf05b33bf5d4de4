"""Allreduces with a priority, which wait before the ranks agree on them; see cpp_core/runtime/progress/held_back.h."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.dag import Engine
from horocache.errors import PeerLostError
from horocache.testing import run_ranks
from horocache.user_backends import Backend, register_backend

SECONDS = 30.0
MIB = 1 << 18  # in elements of float32


class Gated(Backend):
    """Ends no operation before the gate is open, and changes no data. ``prepare`` makes its state in this process."""

    gate: threading.Event
    begun: threading.Event
    order: list[int]

    @classmethod
    def prepare(cls) -> None:
        cls.gate, cls.begun, cls.order = threading.Event(), threading.Event(), []

    def start(self, call):
        Gated.order.append(call.output.nbytes >> 20)
        Gated.begun.set()
        return call

    def test(self, work):
        return Gated.gate.wait(0.005)


def wait_for(condition) -> None:
    limit = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


def start(size: int, priority: int) -> int:
    """Start a sum of this size in MiB."""
    return hc.allreduce_async_(np.ones(size * MIB, np.float32), name=f"t{size}", priority=priority)


def hold_three() -> list[int]:
    """Start a sum that runs, one that waits behind it, and three that are held back."""
    Gated.prepare()
    register_backend("gated", Gated)
    hc.init(select="allreduce=gated", fusion_threshold=0)
    handles = [start(1, -9)]
    assert Gated.begun.wait(SECONDS)
    handles.append(start(2, -8))
    hc.barrier()  # in another lane: then the ranks have agreed on the second
    handles += [start(size, priority) for size, priority in ((3, -7), (4, -1), (5, -4))]
    wait_for(lambda: hc.metrics()["held_back"] >= 3)
    return handles


def run_held():
    handles = hold_three()
    Gated.gate.set()
    hc.synchronize(handles)
    hc.shutdown()
    return Gated.order


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_late_operation_of_a_high_priority_overtakes_those_that_are_held(ranks):
    for order in run_ranks(run_held, ranks, timeout=SECONDS):
        assert order == [1, 2, 4, 5, 3]


def join_held():
    handles = hold_three()
    opened = threading.Timer(0.05, Gated.gate.set)
    opened.start()
    hc.join()
    hc.synchronize(handles)
    hc.shutdown()
    return sum(Gated.order)


def test_a_join_comes_after_the_operations_that_are_held():
    assert run_ranks(join_held, 2, timeout=SECONDS) == [15, 15]


def lose_a_rank():
    handles = hold_three()
    if hc.rank() == 1:
        os._exit(3)
    Gated.gate.set()
    errors = []
    for handle in handles[2:]:
        try:
            hc.synchronize(handle)
        except PeerLostError as error:
            errors.append("rank 1" in str(error))
    return errors


def test_operations_that_are_held_fail_when_a_rank_is_lost():
    first, _ = run_ranks(lose_a_rank, 2, check=False, timeout=SECONDS)
    assert first.value == [True] * 3, first.describe()


def waited(handle: int) -> None:
    hc.synchronize(handle)


def polled(handle: int) -> None:
    wait_for(lambda: hc.poll(handle))
    hc.synchronize(handle)


def pushed(handle: int) -> None:
    engine = Engine()
    tensor = np.zeros(1)
    engine.collective(lambda: handle, writes=[tensor], name="pushed")
    engine.wait(tensor, timeout=SECONDS)
    engine.close()


@on_ranks(2)
@pytest.mark.parametrize("wait", [waited, polled, pushed])
def test_ranks_that_wait_for_operations_of_different_priorities_meet(wait):
    arrays = {size: np.ones(size * MIB, np.float32) for size in (2, 3, 4)}

    def begin(size: int) -> int:
        return hc.allreduce_async_(arrays[size], op=hc.Sum, name=f"m{size}", priority=size)

    for _ in range(4):  # cached from the second on
        if hc.rank() == 0:
            handles = {size: begin(size) for size in (4, 3, 2)}
            wait(handles.pop(2))
            hc.synchronize(list(handles.values()))
        else:
            wait(begin(2))
            hc.synchronize([begin(4), begin(3)])
    assert {float(array[-1]) for array in arrays.values()} == {2.0**4}


@on_ranks(2, 4)
def test_ranks_with_other_orders_and_sizes_agree_on_all_operations():
    for step in range(10):
        random = np.random.default_rng([step, hc.rank()])
        sizes = np.random.default_rng(step).integers(1, 400_000, 25)
        arrays = [np.full(size, float(hc.rank() + number), np.float32) for number, size in enumerate(sizes)]
        handles = [
            hc.allreduce_async_(arrays[number], op=hc.Sum, name=f"s{step}.{number}", priority=int(number * 7 % 5) - 2)
            for number in random.permutation(25)
        ]
        hc.synchronize(handles)
        for number, array in enumerate(arrays):
            assert (array == sum(rank + number for rank in range(hc.size()))).all()
