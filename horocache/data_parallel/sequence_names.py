"""Names for operations that the ranks match by the order of their calls, as in torch.distributed."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

_PAST = 8  # number of latest calls that identify a point of the program
MIN_CALLS_APART = 128  # least number of calls between two uses of one name: that many may be in flight
MAX_NAMES = 2048  # number of names, after which a new epoch of names begins


class Place:
    """A point of the program between two calls; the next call gets its name."""

    __slots__ = ("after", "name", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.used = -MIN_CALLS_APART  # the number of the last call from here
        self.after: dict[Hashable, Place] = {}  # next place, by the call that leads to it


class CallOrder:
    """Gives the calls of one group names that are equal on all of its ranks.

    Note [Names by order]
    The core matches operations by name. It caches the agreed response of each name, so an operation with a known name
    and an unchanged signature needs no negotiation. A program that does not name its operations, and promises that all
    ranks call the same operations in the same order, needs names such that

    - the n-th calls of all ranks have the same name, even if the calls differ: the core then matches them, and reports
      the difference to all ranks;
    - the iterations of a loop give the same names to the same operations, so that the response cache has them;
    - a name is not used again while its last operation may be in flight.

    So a call is not named after itself but after the calls before it. A *place* is a point of the program, identified
    by the last 8 calls. It has a name, which the next call gets, regardless of the call. Ranks that have made the same
    calls so far are in the same place, and loops come back to their places. If a loop is too short and would come back
    to a place in fewer than 128 calls, another place with the same last calls is used in turn. Names do not depend on
    time or threads.

    For example, a loop of 200 operations has 200 names: after the first 8 calls, they repeat every 200 calls. A loop of
    2 operations has 130 names, which repeat every 65 iterations.

    The argument ``call`` must be equal on all ranks. So it contains only parts of the signature, and no number of rows,
    which may differ from rank to rank.

    ``here`` is the place of the next call, and ``here.name`` its name.

    Role: owned by one group. Its calls must come one after the other; else the ranks could not agree on their order.
    """

    def __init__(self, prefix: str) -> None:
        self.calls = 0
        self._stem = prefix
        self._prefix = prefix
        self._epoch = 0
        self._begin()

    def _begin(self) -> None:
        self._past: deque[Hashable] = deque(maxlen=_PAST)
        self._places: dict[tuple[Hashable, ...], deque[Place]] = {}
        self._count = 0
        self.here = self._new_place()

    def _new_place(self) -> Place:
        self._count += 1
        return Place(f"{self._prefix}.{self._epoch}.{self._count - 1}")

    def name(self, call: Hashable) -> str:
        """Return the name of the next call; ``call`` is equal for calls of the same signature."""
        here = self.here
        self.calls += 1
        here.used = self.calls
        self._past.append(call)
        there = here.after.get(call)
        if there is None or self.calls - there.used < MIN_CALLS_APART:
            there = here.after[call] = self._find()
        self.here = there
        return here.name

    def _find(self) -> Place:
        alike = self._places.setdefault(tuple(self._past), deque())
        if alike and self.calls - alike[0].used >= MIN_CALLS_APART:
            alike.rotate(-1)
            return alike[-1]
        if self._count >= MAX_NAMES:  # the program has no loops
            self._epoch += 1
            self._begin()
            return self.here
        alike.append(self._new_place())
        return alike[-1]

    def begin_anew(self) -> None:
        """Forget all calls, because the ranks know that they have made different calls.

        All ranks must call it after the same number of calls.
        """
        self._prefix = f"{self._stem}@{self.calls}"
        self._epoch = 0
        self._begin()
