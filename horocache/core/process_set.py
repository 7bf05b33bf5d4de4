"""Process sets: sets of ranks that operate together. See ``docs/explanation/process_sets.md``."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from horocache.core import context
from horocache.core.mpi import Job, allgather_lists, is_communicator, ranks_of_communicator
from horocache.core.session import Session
from horocache.errors import InvalidArgumentError


class ProcessSet:
    """Some ranks of the job, in ascending order; operations on the set involve only these ranks.

    Role: a value that users keep and pass to operations. ``init(process_sets=[...])`` or
    :func:`~horocache.add_process_set` registers the set, which gives it a ``process_set_id``; ``shutdown`` or
    :func:`~horocache.remove_process_set` takes the id back. :data:`global_process_set`, which contains all ranks and
    has the number 0, is always registered. Operations refuse a set that is not registered.

    Args:
        ranks_or_comm: global ranks, in any order, without repetition; or an mpi4py communicator, whose ranks the set
            gets. With a null communicator, which ``Split`` gives to ranks of an undefined colour, the set has no ranks
            until it is registered; then it has the ranks that its members named.

    Raises:
        InvalidArgumentError: a rank is negative, repeated or not a whole number; or the communicator contains processes
            of another job.
    """

    process_set_id: int | None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self._ranks: list[int] | None = _checked_ranks(ranks_or_comm)
        self._communicator = ranks_or_comm if is_communicator(ranks_or_comm) else None
        self.process_set_id = None

    @property
    def ranks(self) -> list[int]:
        """Global ranks of the set, ascending."""
        return list(range(context.size())) if self._ranks is None else list(self._ranks)

    @property
    def mpi_comm(self) -> Any:
        """The communicator from which the set was made, or None."""
        return self._communicator

    def size(self) -> int:
        """Number of ranks in the set."""
        return context.size() if self._ranks is None else len(self._ranks)

    def rank(self) -> int:
        """This process's rank within the set.

        Raises:
            InvalidArgumentError: this process is not in the set.
        """
        own = context.rank()
        if self._ranks is None:
            return own
        if own not in self._ranks:
            raise InvalidArgumentError(f"Rank {own} is not a member of the provided process set {self._ranks}.")
        return self._ranks.index(own)

    def included(self) -> bool:
        """True if this process is in the set."""
        return self._ranks is None or context.rank() in self._ranks

    def __repr__(self) -> str:
        ranks = "all" if self._ranks is None else str(self._ranks)
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={ranks})"

    def count_in(self, job: Job) -> None:
        """If the set was made from a communicator, set its ranks to those of the communicator in ``job``."""
        if self._communicator:
            self._ranks = sorted(ranks_of_communicator(self._communicator, job))
        elif self._communicator is not None and self.process_set_id is None:
            self._ranks = []  # a null communicator's set may have ranks from an earlier job

    def part_of(self, parts: list[list[int]]) -> list[ProcessSet]:
        """Return the sets that all ranks register at the position of this set, which is one of them.

        If this set has no ranks, because it was made from a null communicator, it becomes the first part.
        """
        if not self._ranks:
            self._ranks = list(parts[0])
        return [self if ranks == self._ranks else ProcessSet(ranks) for ranks in parts]

    @classmethod
    def _world(cls) -> ProcessSet:
        world = cls([])
        world._ranks = None
        world.process_set_id = 0
        return world


def _checked_ranks(ranks: Any) -> list[int]:
    if is_communicator(ranks):
        return sorted(ranks_of_communicator(ranks)) if ranks else []
    if not isinstance(ranks, Iterable) or isinstance(ranks, (str, bytes)):
        raise InvalidArgumentError(f"a process set is a list of ranks or a communicator, not {ranks!r}.")
    given = list(ranks)
    if not all(isinstance(rank, Integral) for rank in given):
        raise InvalidArgumentError(f"a process set has ranks, which are whole numbers, not {given}.")
    chosen = sorted(int(rank) for rank in given)
    if chosen and chosen[-1] >= 1 << 31:
        raise InvalidArgumentError(f"a process set has ranks of the job, which has no rank {chosen[-1]}.")
    if len(set(chosen)) != len(chosen) or (chosen and chosen[0] < 0):
        raise InvalidArgumentError(f"a process set needs distinct ranks that are not negative, not {given}.")
    return chosen


global_process_set = ProcessSet._world()
world = global_process_set


def registered_set(number: int) -> ProcessSet:
    """Return the registered set with this number; 0 is the global set.

    Raises:
        NotInitializedError: no session runs. InvalidArgumentError: no set has this number.
    """
    found = context.current().process_sets.get(number) if number else global_process_set
    if found is None:
        raise InvalidArgumentError(
            "Process set provided does not exist, or had not been registered when the graph was made. Use "
            "global_process_set, or give the set to init(process_sets=[...])."
        )
    return found


def process_sets() -> list[ProcessSet]:
    """The registered process sets, in the order of ``process_set_id``; the first is the global one.

    Raises:
        NotInitializedError: before ``init`` or after ``shutdown``.
    """
    sets = context.known_sets()
    return [global_process_set, *(sets[number] for number in sorted(sets))]


def sets_to_register(argument: Any, job: Job) -> list[ProcessSet]:
    """Convert the argument ``process_sets`` of :func:`horocache.init` to a list of :class:`ProcessSet`.

    Raises:
        InvalidArgumentError: the argument is not a list, or an element is the global set or not a process set.
    """
    if argument is None or (isinstance(argument, str) and argument == "dynamic"):
        return []
    if isinstance(argument, (str, bytes)) or not isinstance(argument, Iterable):
        raise InvalidArgumentError(f"process_sets is a list of process sets, not {argument!r}.")
    sets = [made if isinstance(made, ProcessSet) else ProcessSet(made) for made in argument]
    for number, made in enumerate(sets, 1):
        if made is global_process_set:
            raise InvalidArgumentError(
                f"process set {number} of init() is the global one, which is always registered; leave it out."
            )
        made.count_in(job)
    return sets


def named_by_all(sets: list[ProcessSet], job: Job, limit_s: float) -> list[ProcessSet]:
    """Return the sets to register, in the same order on all ranks.

    A communicator from ``Split`` is a different set on different ranks: each rank names the part that contains it. At
    each position of the list, all parts that the ranks named are registered one after the other; see
    :func:`parts_at_one_place`. If they do not fit together, the ranks have named different sets. Then ``sets`` itself
    is returned, and start-up refuses it.

    Raises:
        StartupError: a rank did not come within ``limit_s`` seconds.
    """
    if not sets:
        return sets
    gathered = [
        _lists_of(numbers) for numbers in allgather_lists(job, _numbers_of([made.ranks for made in sets]), limit_s)
    ]
    if len({len(lists) for lists in gathered}) != 1:
        return sets
    parts = [parts_at_one_place(list(named)) for named in zip(*gathered, strict=True)]
    if any(each is None for each in parts):
        return sets
    return [each for made, ranks in zip(sets, parts, strict=True) if ranks for each in made.part_of(ranks)]


def parts_at_one_place(named: list[list[int]]) -> list[list[int]] | None:
    """Return the sets to register at one position of the list, by their lowest rank; None if they do not fit together.

    They fit if all ranks named the same set. Otherwise each rank must be in the set that it named, or have named none,
    and no two of the sets may overlap. For example, if ranks 0 and 2 named ``[0, 2]``, rank 1 named ``[1]`` and rank 3
    named none, the result is ``[[0, 2], [1]]``.

    Args:
        named: the set that each rank named, by rank; empty if it named none.
    """
    different = sorted({tuple(ranks) for ranks in named if ranks})
    if len(different) != 1 or [] in named:
        members = [rank for ranks in different for rank in ranks]
        in_own = all(rank in ranks for rank, ranks in enumerate(named) if ranks)
        if not members or len(set(members)) != len(members) or not in_own:
            return None
    return [list(ranks) for ranks in different]


def _numbers_of(lists: list[list[int]]) -> list[int]:
    return [number for ranks in lists for number in (len(ranks), *ranks)]


def _lists_of(numbers: list[int]) -> list[list[int]]:
    lists = []
    while numbers:
        count, *numbers = numbers
        lists.append(numbers[:count])
        numbers = numbers[count:]
    return lists


def register_again(session: Session, sets: list[ProcessSet]) -> None:
    """Give the numbers of the running session's sets to other objects for the same sets.

    Raises:
        InvalidArgumentError: the sets are not the same.
    """
    registered = sorted(session.process_sets.items())
    had, asked = [made.ranks for _, made in registered], [made.ranks for made in sets]
    if any(made.mpi_comm is not None for made in sets):  # parts that only other ranks named are registered, too
        registered = [(number, made) for number, made in registered if made.ranks in asked]
    if asked != [made.ranks for _, made in registered]:
        raise InvalidArgumentError(
            f"horocache runs already, started with process sets {had}; init() now asks for {asked}. "
            "Call shutdown() first."
        )
    for (number, _), made in zip(registered, sets, strict=True):
        session.register(number, made)
