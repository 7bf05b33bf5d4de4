"""Names for operations that ranks match by the order of their calls, as torch.distributed does."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

_PAST = 8  # calls that tell where a program is
_APART = 128  # calls between two uses of one name at least: as many may be in flight
_MOST = 2048  # names, before they are given anew


class _Place:
    """A point of the program between two calls; its name is that of the call that follows."""

    __slots__ = ("after", "name", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.used = -_APART  # the number of the last call from here
        self.after: dict[Hashable, _Place] = {}


class CallOrder:
    """Gives the calls of one group names that are equal on all of its ranks.

    Note [Names by order]
    The core matches operations by name, remembers for each name what all ranks agreed on, and takes an operation under
    a known name that is like the last one without a further word. A program that names nothing, and promises that all
    ranks call the same operations in the same order, needs names such that

    - the n-th calls of all ranks have one name, whatever they are: if they differ, they meet under it, and the core
      tells all ranks what differs;
    - a loop gives the same names to the same operations turn after turn, so that the cache has them;
    - a name does not come again while its last operation may be in flight.

    So a call is not named after itself but after the calls before it. A *place* is what the last calls were; it has a
    name, which the next call gets, whatever that is. Ranks that have made the same calls so far are in the same place.
    Loops come back to their places. Where a place would come back too early, because the loop is short, another one
    with the same past takes its turn. What runs when, in which thread and for how long has no part in this.

    The call as it is given here must be equal on all ranks, so it has what the signature has and no more: no number of
    rows that may differ from rank to rank.

    Role: owned by one group; its calls come one after the other, as its ranks could not agree on their order otherwise.
    """

    def __init__(self, prefix: str) -> None:
        self.calls = 0
        self._prefix = prefix
        self._epoch = 0
        self._begin()

    def _begin(self) -> None:
        self._past: deque[Hashable] = deque(maxlen=_PAST)
        self._places: dict[tuple[Hashable, ...], deque[_Place]] = {}
        self._count = 0
        self._here = self._new_place()

    def _new_place(self) -> _Place:
        self._count += 1
        return _Place(f"{self._prefix}.{self._epoch}.{self._count - 1}")

    def name(self, call: Hashable) -> str:
        """The name of the next call; ``call`` is what makes it different from others."""
        here = self._here
        self.calls += 1
        here.used = self.calls
        self._past.append(call)
        there = here.after.get(call)
        if there is None or self.calls - there.used < _APART:
            there = here.after[call] = self._find()
        self._here = there
        return here.name

    def _find(self) -> _Place:
        alike = self._places.setdefault(tuple(self._past), deque())
        if alike and self.calls - alike[0].used >= _APART:
            alike.rotate(-1)
            return alike[-1]
        if self._count >= _MOST:  # a program without loops
            self._epoch += 1
            self._begin()
            return self._here
        alike.append(self._new_place())
        return alike[-1]

    def begin_anew(self) -> None:
        """Forget all that was called: the ranks have called different things, and know it.

        To be called by all ranks after the same number of calls.
        """
        self._prefix = f"{self._prefix.partition('@')[0]}@{self.calls}"
        self._epoch = 0
        self._begin()
