"""The plan of a tuning run: what to measure, in which order, and how the budget is divided.

Note [Order of measurements]
A run may be cut at any moment, by its budget or by the user, and the table should be useful then. The smallest, the
largest and the middle size of all operations come first, on all layouts; the sizes between follow. Layouts and sizes
take turns by bisection: of 2, 4, 8, 16 and 32 ranks, the order is 2, 32, 8, 4, 16. Each layout has one job for the
first sizes and one for the rest, because the start of a job takes about a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from horocache.base.usage import UsageError
from horocache.tuning.lookup import World
from horocache.tuning.table import MAX_LAYOUTS, MAX_SIZE_BYTES, MAX_SIZES, OPERATIONS

ELEMENT_BYTES = 4  # of float32, in which everything is measured
START_SECONDS = 2.0  # about the time from the start of a job to its first measurement
UNIT_SECONDS = 4.0  # of the repetitions of one unit, at most
FEWEST_TURNS = 3  # repetitions of a unit, whatever they take
_MOST_RANKS = 1024  # of a layout: all of them run on this machine
_FIRST_SIZES = 3  # that the first job of a layout measures
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}
_BACKEND = re.compile(r"[A-Za-z0-9_.-]{1,80}(/[A-Za-z0-9_.-]{1,80})?")


class Unit(msgspec.Struct, frozen=True):
    """An operation of one size, of which all candidates are measured together."""

    op: str
    bytes: int


class JobPlan(msgspec.Struct, frozen=True):
    """The work of one job, as the command gives it to the ranks.

    Attributes:
        ranks: number of ranks.
        hosts: number of hosts.
        units: what to measure, in this order.
        backends: names of backends, or of backends with an algorithm, to measure; empty: all that the job has.
        skipped: candidates that ended an earlier job of this layout, by operation.
        overlap: number of operations of a set.
        repetitions: most repetitions of each set.
        deadline: time of CLOCK_MONOTONIC, in seconds, after which no unit is begun.
        patience: seconds after which an operation counts as stuck.
    """

    ranks: int
    hosts: int
    units: tuple[Unit, ...]
    backends: tuple[str, ...]
    skipped: dict[str, tuple[str, ...]]
    overlap: int
    repetitions: int
    deadline: float
    patience: float

    @property
    def world(self) -> World:
        """The layout."""
        return World(self.ranks, self.hosts)


@dataclass(frozen=True)
class Wish:
    """The wish of a user: operations, sizes and layouts to measure, and how."""

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    worlds: tuple[World, ...]
    backends: tuple[str, ...]
    overlap: int
    repetitions: int

    def stages(self) -> Iterator[tuple[World, tuple[Unit, ...]]]:
        """The jobs: a layout and its units, in the order of Note [Order of measurements]."""
        sizes = [self.sizes[i] for i in by_bisection(len(self.sizes))]
        worlds = [self.worlds[i] for i in by_bisection(len(self.worlds))]
        for part in (sizes[:_FIRST_SIZES], sizes[_FIRST_SIZES:]):
            if part:
                units = tuple(Unit(op, size) for size in part for op in self.ops)
                yield from ((world, units) for world in worlds)

    def needs_mpiexec(self, world: World) -> bool:
        """True if the layout's job must be started by mpiexec: on several hosts, and for the backend ``mpi``."""
        return world.hosts > 1 or any(name.partition("/")[0] == "mpi" for name in self.backends)

    def seconds_of(self, world: World, unit: Unit) -> float:
        """A rough estimate of the seconds that a unit takes: four candidates, 50 us a rank, 2 GB/s."""
        one = world.ranks * (50e-6 + unit.bytes / 2e9)
        turns = 4 * self.overlap * one
        return turns * FEWEST_TURNS + min(UNIT_SECONDS, turns * self.repetitions)


def by_bisection(count: int) -> list[int]:
    """Return the numbers below ``count`` in an order of which each beginning is spread over all: 0, 4, 2, 1, 3."""
    order = list(dict.fromkeys([0, count - 1])) if count else []
    gaps = [(0, count - 1)]
    for low, high in gaps:
        middle = (low + high) // 2
        if low < middle:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return order


# ---- arguments


def parse_ops(text: str) -> tuple[str, ...]:
    """Parse names of operations, such as ``all_reduce,broadcast``; underscores are optional. Raises UsageError."""
    found = []
    for part in text.split(","):
        name = part.strip().lower().replace("_", "")
        if name not in OPERATIONS:
            raise UsageError(f"'{part[:80]}' is not an operation that can be tuned; there are {', '.join(OPERATIONS)}")
        found.append(name)
    return tuple(dict.fromkeys(found))


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse sizes in bytes, such as ``1K,3M`` or ``1K:1M:x4``, from the smallest to the largest. Raises UsageError."""
    found: set[int] = set()
    for part in text.split(","):
        ends = part.strip().split(":")
        if len(ends) == 1:
            found.add(_size(ends[0], part))
            continue
        factor = ends[2][1:] if len(ends) == 3 and ends[2][:1] in ("x", "X") else "2" if len(ends) == 2 else ""
        if not (factor.isascii() and factor.isdecimal()) or len(factor) > 6 or int(factor) < 2:
            raise UsageError(f"'{part[:80]}' is not a range of sizes; write SMALLEST:LARGEST:xFACTOR, as in 1K:1M:x4")
        size, last = _size(ends[0], part), _size(ends[1], part)
        if size > last:
            raise UsageError(f"the range of sizes '{part[:80]}' is empty: {size} bytes are more than {last}")
        while size <= last:
            found.add(size)
            size *= int(factor)
    if len(found) > MAX_SIZES:
        raise UsageError(f"{len(found)} sizes are too many; the most are {MAX_SIZES}")
    return tuple(sorted(found))


def _size(text: str, part: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15})([kKmMgG]?)", text.strip())
    size = int(match[1]) << _UNITS[match[2].lower()] if match else 0
    if not ELEMENT_BYTES <= size <= MAX_SIZE_BYTES or size % ELEMENT_BYTES:
        raise UsageError(
            f"'{part[:80]}' is not a size such as 64K, or a range such as 1K:1M:x4; a size is a multiple of "
            f"{ELEMENT_BYTES} bytes, at most {MAX_SIZE_BYTES}"
        )
    return size


def parse_worlds(ranks: str, layouts: str) -> tuple[World, ...]:
    """Parse numbers of ranks, such as ``2,4``, and layouts, such as ``1,2x2``.

    The layout ``1`` is one host, with each number of ranks; ``2x2`` is two hosts with two ranks each.

    Raises:
        UsageError: a number is not one, or too large.
    """
    found: list[World] = []
    on_one_host = [World(_count(part, 2, "number of ranks"), 1) for part in ranks.split(",")]
    for layout in layouts.split(","):
        hosts, cross, per_host = layout.strip().lower().partition("x")
        if not cross:
            if hosts != "1":
                raise UsageError(f"'{layout[:80]}' is not a layout; write 1, or HOSTSxRANKS, as in 2x2")
            found += on_one_host
        else:
            number = _count(hosts, 1, "number of hosts")
            world = World(number * _count(per_host, 1, "number of ranks of a host"), number)
            if not 2 <= world.ranks <= _MOST_RANKS:
                raise UsageError(f"the layout '{layout[:80]}' has {world.ranks} ranks; from 2 to {_MOST_RANKS} can be")
            found.append(world)
    worlds = sorted(set(found), key=lambda world: (world.ranks, world.hosts))
    if len(worlds) > MAX_LAYOUTS:
        raise UsageError(f"{len(worlds)} layouts are too many; the most are {MAX_LAYOUTS}")
    return tuple(worlds)


def _count(text: str, least: int, what: str) -> int:
    number = int(text) if re.fullmatch(r"\s*[0-9]{1,7}\s*", text) else -1
    if not least <= number <= _MOST_RANKS:
        raise UsageError(f"'{text[:80]}' is not a {what} from {least} to {_MOST_RANKS}")
    return number


def parse_backends(text: str) -> tuple[str, ...]:
    """Parse names of backends, such as ``shm,mpi/fold``; empty: all. Raises UsageError."""
    names = [part.strip() for part in text.split(",")] if text else []
    for name in names:
        if not _BACKEND.fullmatch(name):
            raise UsageError(f"'{name[:80]}' is not the name of a backend; write BACKEND or BACKEND/ALGORITHM")
    return tuple(dict.fromkeys(names))


def check_memory(sizes: Sequence[int], worlds: Sequence[World], overlap: int, memory_bytes: int) -> None:
    """Raise UsageError if the largest sets of operations do not fit into half of the memory."""
    ranks = max(world.ranks for world in worlds)
    needed = 2 * max(sizes) * overlap * ranks  # inputs and results
    if needed > memory_bytes // 2:
        raise UsageError(
            f"{overlap} overlapped operations of {max(sizes)} bytes on {ranks} ranks need {needed} bytes, which is "
            f"more than half of the memory here, {memory_bytes}; give smaller sizes or a smaller --overlap"
        )
