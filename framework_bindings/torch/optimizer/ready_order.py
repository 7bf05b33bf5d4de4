"""The order in which rank 0's first step used parameters and made their gradients: what groups and priorities follow.

Note [The order of the forward pass]
A backward pass goes through the operations of the forward pass in exactly the opposite order: of those that it can run,
the engine takes the one that was recorded last. A gradient is complete when the pass has come to the first use of its
parameter. So the order in which the gradients of a pass become complete, backwards, is the order in which the forward
pass first used the parameters, and one measurement gives both. It sees what hooks on modules would not see, as tied
weights and others that are used without a call of their module, and checkpointed parts; it costs nothing; and it is no
affair of torch.compile, which hooks on modules would make compile everything twice. The gradients of one compiled graph
are complete at the same moment, in no particular order.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from horocache.torch.optimizer.gradient_queue import pass_under_way

import torch
from horocache.collectives.completion import synchronize
from horocache.collectives.numpy import collectives
from horocache.core.process_set import ProcessSet
from horocache.data_parallel.bucketing import complete_order


class Orders(NamedTuple):
    """Numbers of parameters; each list has all of them."""

    ready: list[int]  # as gradients become complete
    used: list[int]  # as the forward pass uses them first; what has no gradient comes last


def assumed_orders(count: int) -> Orders:
    """Those of a model that uses its parameters in the order in which they are registered."""
    registered = list(range(count))
    return Orders(registered[::-1], registered)


class ReadyOrder:
    """Rank 0's orders, measured in one step and sent to all at its end.

    Role: owned by a reducer; used by the thread that runs backward and step.
    """

    def __init__(self, wanted: bool, process_set: ProcessSet) -> None:
        self.wanted = wanted  # where gradients are grouped
        self._process_set = process_set
        self._sent: tuple[np.ndarray[Any, Any], int] | None = None  # what are to be the orders, and its handle
        self.measures = False  # in this step
        self._measured: list[int] = []  # numbers of parameters
        self._begins: list[int] = []  # places in that list where another backward pass begins
        self._newest_pass = -1

    def measure(self) -> None:
        """Look at the step that begins, on all ranks, if that is wanted."""
        self.measures = self.wanted
        self._measured, self._begins, self._newest_pass = [], [], -1

    def note(self, index: int) -> None:
        """The gradient of a parameter is complete; to be called in the backward pass."""
        number = pass_under_way()
        if number > self._newest_pass:
            self._newest_pass = number
            if not _inside_another():
                self._begins.append(len(self._measured))
        self._measured.append(index)

    @property
    def busy(self) -> bool:
        """Whether they are in flight."""
        return self._sent is not None

    def start(self, names: list[str]) -> None:
        """Send what was measured, on every rank; does nothing if this step was not. ``names``: of all parameters.

        Raises:
            HorocacheError: it cannot be sent.
        """
        if not self.measures:
            return
        self.measures = False
        orders = np.array([complete_order(self._measured, len(names)), self._used(len(names))], dtype=np.int64)
        name = f"ready_order.{names[0]}" if names else "ready_order"
        self._sent = orders, collectives.broadcast_async_(orders, self._process_set.ranks[0], name, self._process_set)

    def _used(self, count: int) -> list[int]:
        """Each pass backwards, as the forward passes were; then what no gradient has shown."""
        places = [0, *self._begins, len(self._measured)]
        shown = [index for begin, end in pairwise(places) for index in reversed(self._measured[begin:end])]
        return list(dict.fromkeys([*shown, *range(count)]))

    def finish(self) -> Orders | None:
        """The orders that were sent, to go by from now on; None if none were.

        Raises:
            HorocacheError: they did not come. After an interrupt they can be waited for again.
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
    """Whether the backward pass under way was called by another, which checkpoints do: for it, this is no new one."""
    calls = 0
    frame = sys._getframe()
    while frame is not None:
        calls += frame.f_code is _BACKWARD
        frame = frame.f_back  # type: ignore[assignment]
    return calls > 1
