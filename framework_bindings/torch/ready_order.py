"""In which order gradients become ready, as rank 0 sees it in the first step: what groups are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from horocache.grouping import complete_order
from horocache.handles import synchronize
from horocache.numpy_binding import collectives
from horocache.process_set import ProcessSet


class ReadyOrder:
    """Rank 0's order, measured in the first step and sent to all.

    Role: owned by a reducer; used by the thread that runs backward and step.
    """

    def __init__(self, wanted: bool, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._sent: tuple[np.ndarray[Any, Any], int] | None = None  # what is to be the order, and its handle
        self.measured: list[int] | None = [] if wanted else None  # numbers of parameters; None after the first step

    @property
    def busy(self) -> bool:
        """Whether it is in flight."""
        return self._sent is not None

    def start(self, names: list[str]) -> None:
        """Send it in every rank's first step; does nothing later. ``names``: of all parameters.

        Raises:
            HorocacheError: it cannot be sent.
        """
        measured, self.measured = self.measured, None
        if measured is None:
            return
        order = np.array(complete_order(measured, len(names)), dtype=np.int64)
        name = f"ready_order.{names[0]}" if names else "ready_order"
        self._sent = order, collectives.broadcast_async_(order, self._process_set.ranks[0], name, self._process_set)

    def finish(self) -> list[int] | None:
        """The order that was sent, in which to group from now on; None if none was.

        Raises:
            HorocacheError: it did not come. After an interrupt it can be waited for again.
        """
        if self._sent is None:
            return None
        order, handle = self._sent
        try:
            synchronize(handle)
        except Exception:
            self._sent = None
            raise
        self._sent = None
        return [int(index) for index in order]
