"""Measures on rank 0 how gradients become ready and parameters are used. Groups and priorities follow these orders.

Note [The order of the forward pass]
A backward pass runs the operations of the forward pass in exactly the reverse order: of the operations that can run,
the engine takes the one that was recorded last. A gradient is complete when the pass reaches the first use of its
parameter. Therefore the order in which gradients become complete is the reverse of the order in which the forward pass
first used the parameters, and one measurement gives both. For example, if the forward pass uses the parameters 0, 1, 2
and then 0 again, the gradients become complete in the order 2, 1, 0.

Unlike hooks on modules, the measurement covers parameters that are used without a call of their module, such as tied
weights, and checkpointed parts. It costs nothing and does not affect torch.compile, whereas hooks on modules would make
it compile everything twice. The gradients of one compiled graph become complete at the same moment, in any order.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import torch
from horocache.collectives.completion import synchronize
from horocache.collectives.numpy import collectives
from horocache.core.process_set import ProcessSet
from horocache.data_parallel.bucketing import complete_order

from .gradient_queue import pass_under_way


class Orders(NamedTuple):
    """Two orders of all parameters, by their numbers."""

    ready: list[int]  # the order in which gradients become complete
    used: list[int]  # the order of first use in the forward pass; parameters without a gradient come last


def assumed_orders(count: int) -> Orders:
    """Return the orders of a model that uses its parameters in registration order."""
    registered = list(range(count))
    return Orders(registered[::-1], registered)


class ReadyOrder:
    """Rank 0's orders, measured in one step and broadcast to all ranks at its end.

    Role: owned by a reducer; used by the thread that runs backward and step.
    """

    def __init__(self, wanted: bool, process_set: ProcessSet) -> None:
        self.wanted = wanted  # True if gradients are grouped
        self._process_set = process_set
        self._sent: tuple[np.ndarray[Any, Any], int] | None = None  # the orders in flight and the handle
        self.measures = False  # True if this step is measured
        self._measured: list[int] = []  # numbers of parameters
        self._begins: list[int] = []  # positions in that list where another backward pass begins
        self._newest_pass = -1

    def measure(self) -> None:
        """Start to measure the step that begins, if gradients are grouped. Called on all ranks."""
        self.measures = self.wanted
        self._measured, self._begins, self._newest_pass = [], [], -1

    def note(self, index: int) -> None:
        """Record that a parameter's gradient is complete. Called in the backward pass."""
        number = pass_under_way()
        if number > self._newest_pass:
            self._newest_pass = number
            if not _inside_another():
                self._begins.append(len(self._measured))
        self._measured.append(index)

    @property
    def busy(self) -> bool:
        """True if the orders are in flight."""
        return self._sent is not None

    def start(self, names: list[str]) -> None:
        """Start to broadcast the measured orders; does nothing if this step was not measured. Called on all ranks.

        Args:
            names: the names of all parameters.

        Raises:
            HorocacheError: the broadcast cannot be submitted.
        """
        if not self.measures:
            return
        self.measures = False
        orders = np.array([complete_order(self._measured, len(names)), self._used(len(names))], dtype=np.int64)
        name = f"ready_order.{names[0]}" if names else "ready_order"
        self._sent = orders, collectives.broadcast_async_(orders, self._process_set.ranks[0], name, self._process_set)

    def _used(self, count: int) -> list[int]:
        """Return the order of use: the gradients of each pass in reverse, then the parameters without a gradient."""
        places = [0, *self._begins, len(self._measured)]
        shown = [index for begin, end in pairwise(places) for index in reversed(self._measured[begin:end])]
        return list(dict.fromkeys([*shown, *range(count)]))

    def finish(self) -> Orders | None:
        """Wait for the broadcast orders and return them; None if none are in flight.

        Raises:
            HorocacheError: the broadcast failed. After an interrupt it can be waited for again.
        """
        if self._sent is None:
            return None
        orders, handle = self._sent
        try:
            synchronize(handle)
        except Exception:
            self._sent = None
            raise
        self._sent = None
        ready, used = orders.tolist()
        return Orders(ready, used)


_BACKWARD = torch.autograd.backward.__code__


def _inside_another() -> bool:
    """Return True if another backward pass called the current one, as reentrant checkpoints do, and so includes it."""
    calls = 0
    frame = sys._getframe()
    while frame is not None:
        calls += frame.f_code is _BACKWARD
        frame = frame.f_back  # type: ignore[assignment]
    return calls > 1
