"""Sets of ranks that operate together. ``docs/explanation/process_sets.md`` tells how they relate."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from horocache.core import context
from horocache.core.mpi import Job, is_communicator, ranks_of_communicator, tell_all
from horocache.core.session import Session
from horocache.errors import InvalidArgumentError


class ProcessSet:
    """Some ranks of the job, in ascending order; operations on the set involve these ranks and no others.

    Role: a value that users hold and pass to operations. ``init(process_sets=[...])`` or
    :func:`~horocache.add_process_set` registers it, which gives it a ``process_set_id``; ``shutdown`` or
    :func:`~horocache.remove_process_set` takes that back. :data:`global_process_set`, which holds all ranks and has the
    number 0, is always registered. Operations refuse a set that is not.

    Args:
        ranks_or_comm: global ranks, in any order, without repetition; or an mpi4py communicator, whose ranks are taken.
            A null communicator, which ``Split`` gives to the ranks of an undefined colour, has no ranks until the set
            is registered; then it has those that the members named.

    Raises:
        InvalidArgumentError: the ranks are no whole numbers, negative, or not distinct; or the communicator holds
            processes of another job.
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
        """The communicator that the set was made of, or None."""
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
        """Whether this process is in the set."""
        return self._ranks is None or context.rank() in self._ranks

    def __repr__(self) -> str:
        ranks = "all" if self._ranks is None else str(self._ranks)
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={ranks})"

    def count_in(self, job: Job) -> None:
        """Count the ranks of a communicator in those of ``job``, which ``init`` starts."""
        if self._communicator:
            self._ranks = sorted(ranks_of_communicator(self._communicator, job))
        elif self._communicator is not None and self.process_set_id is None:
            self._ranks = []  # an earlier job may have given it ranks

    def part_of(self, parts: list[list[int]]) -> list[ProcessSet]:
        """The sets of ranks that all ranks register where this rank named this set, which is one of them.

        A set without ranks here, of a null communicator, becomes the first.
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
    """The set of that number; 0 is that of all ranks.

    Raises:
        NotInitializedError, InvalidArgumentError: there is none.
    """
    found = context.current().process_sets.get(number) if number else global_process_set
    if found is None:
        raise InvalidArgumentError(
            "Process set provided does not exist, or had not been registered when the graph was made. Use "
            "global_process_set, or give the set to init(process_sets=[...])."
        )
    return found


def process_sets() -> list[ProcessSet]:
    """The registered process sets, by ``process_set_id``; the first is the global one.

    Raises:
        NotInitializedError: before ``init`` or after ``shutdown``.
    """
    sets = context.known_sets()
    return [global_process_set, *(sets[number] for number in sorted(sets))]


def sets_to_register(argument: Any, job: Job) -> list[ProcessSet]:
    """What :func:`horocache.init` was given as ``process_sets``, each as a :class:`ProcessSet`.

    Raises:
        InvalidArgumentError: it is no list, or something in it is no process set or the global one.
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
    """The sets to register, in an order that is the same on all ranks, where each rank named the part that it is in.

    A communicator from ``Split`` is a different set on different ranks. At each place of the list, the sets that the
    ranks named are registered one after the other; see :func:`parts_at_one_place`. Where they are not parts that fit
    together, the ranks name different sets, which start-up refuses: then ``sets`` itself is returned.

    Raises:
        StartupError: a rank did not come within ``limit_s`` seconds.
    """
    if not sets:
        return sets
    told = [_lists_of(numbers) for numbers in tell_all(job, _numbers_of([made.ranks for made in sets]), limit_s)]
    if len({len(lists) for lists in told}) != 1:
        return sets
    parts = [parts_at_one_place(list(named)) for named in zip(*told, strict=True)]
    if any(each is None for each in parts):
        return sets
    return [each for made, ranks in zip(sets, parts, strict=True) if ranks for each in made.part_of(ranks)]


def parts_at_one_place(named: list[list[int]]) -> list[list[int]] | None:
    """The sets to register where each rank named one, by the rank: by their lowest rank; None if they do not fit.

    They fit if all ranks named the same set. Else each rank has to be in the set that it named, or it named none; and
    no two of the sets overlap.
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
    """Give the numbers of a session that runs to other objects for the same sets.

    Raises:
        InvalidArgumentError: they are not the same sets.
    """
    registered = sorted(session.process_sets.items())
    had, asked = [made.ranks for _, made in registered], [made.ranks for made in sets]
    if any(made.mpi_comm is not None for made in sets):  # the other ranks' parts are registered, too
        registered = [(number, made) for number, made in registered if made.ranks in asked]
    if asked != [made.ranks for _, made in registered]:
        raise InvalidArgumentError(
            f"horocache runs already, started with process sets {had}; init() now asks for {asked}. "
            "Call shutdown() first."
        )
    for (number, _), made in zip(registered, sets, strict=True):
        session.register(number, made)
