"""The lanes of a store whose collectives run in the program's order."""

from __future__ import annotations

from horocache.dag import Engine, Lane
from horocache.data_parallel.sequence_names import CallOrder
from horocache.errors import MismatchError


class Lanes:
    """Gives the collectives of a store their lanes, in turn, and their names, by the order of the calls.

    If ranks use different keys in one place of a lane, that collective is a MismatchError on all of them.

    Role: owned by a store, which locks it.
    """

    def __init__(self, engine: Engine, prefix: str, count: int) -> None:
        """Make the lanes.

        Args:
            engine: that runs the collectives.
            prefix: of names, the store's own.
            count: of lanes.
        """
        names = [f"{prefix}.lane{number}" for number in range(count)]
        self._lanes = [(engine.lane(name), CallOrder(name)) for name in names]
        self._calls = 0

    def next(self, key: object) -> tuple[Lane, str]:
        """Return the lane and the name of the next collective, which is that of ``key``.

        Raises:
            MismatchError: the lane has stopped, because the ranks used different keys.
        """
        lane, order = self._lanes[self._calls % len(self._lanes)]
        if lane.stopped is not None:
            raise MismatchError(f"{lane.stopped} The store has stopped; create a new one.") from lane.stopped
        self._calls += 1
        return lane, order.name(key)
