"""Sets of ranks that operate together."""

from __future__ import annotations

from collections.abc import Sequence

from horocache import _state
from horocache.errors import InvalidArgumentError, UnsupportedError


class ProcessSet:
    """Some ranks of the job, in ascending order; operations on the set involve these ranks and no others.

    Role: a value that users hold and pass to operations. Only :data:`global_process_set`, which holds all ranks, is
    registered; any other set is refused by the operations.

    Args:
        ranks: global ranks, in any order, without repetition.
    """

    process_set_id: int | None

    def __init__(self, ranks: Sequence[int]) -> None:
        chosen = sorted(int(rank) for rank in ranks)
        if len(set(chosen)) != len(chosen) or (chosen and chosen[0] < 0):
            raise InvalidArgumentError(f"a process set needs distinct ranks that are not negative, not {list(ranks)}.")
        self._ranks: list[int] | None = chosen
        self.process_set_id = None

    @property
    def ranks(self) -> list[int]:
        """Global ranks of the set, ascending."""
        return list(range(_state.size())) if self._ranks is None else list(self._ranks)

    def size(self) -> int:
        """Number of ranks in the set."""
        return _state.size() if self._ranks is None else len(self._ranks)

    def rank(self) -> int:
        """This process's rank within the set.

        Raises:
            InvalidArgumentError: this process is not in the set.
        """
        own = _state.rank()
        if self._ranks is None:
            return own
        if own not in self._ranks:
            raise InvalidArgumentError(f"Rank {own} is not a member of the provided process set {self._ranks}.")
        return self._ranks.index(own)

    def included(self) -> bool:
        """Whether this process is in the set."""
        return self._ranks is None or _state.rank() in self._ranks

    def __repr__(self) -> str:
        ranks = "all" if self._ranks is None else str(self._ranks)
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={ranks})"

    @classmethod
    def _world(cls) -> ProcessSet:
        world = cls([])
        world._ranks = None
        world.process_set_id = 0
        return world


global_process_set = ProcessSet._world()
world = global_process_set


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set of ranks; not available yet.

    Raises:
        UnsupportedError: always: this version has one process set, :data:`global_process_set`.
    """
    raise UnsupportedError(
        f"process sets other than global_process_set come with a later version; cannot register {process_set!r}."
    )


def remove_process_set(process_set: ProcessSet) -> bool:
    """Take a set out of use. Returns False for the global set, which stays, and for a set that was never registered."""
    return False
