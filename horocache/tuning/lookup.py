"""Lookup in tuning tables: from measured times to selector rules.

Note [Rules of a tuning table]
A table has times for some operations, layouts and sizes. The selector asks for any. The lookup answers as follows.

* Operation: one that was not measured has no rule, so that the selector's default decides.
* Layout: one that was not measured takes the nearest number of ranks with the same number of hosts. If this number of
  hosts was not measured, it takes the nearest number of ranks with any number of hosts, and of these layouts that with
  the nearest number of hosts. Nearest means by ratio; of two equally near numbers it is the larger one. For example, if
  2 and 8 ranks were measured, then 3 ranks take the times of 2, and 4 ranks those of 8 (8 / 4 = 4 / 2). One host and
  several hosts never stand for each other, because other backends connect their ranks: such a layout has no rule.
* Size: each measured size has a winner, the candidate with the smallest median. Between two neighbouring sizes with
  different winners, the boundary is their geometric mean, rounded to a whole number of bytes; from the boundary on the
  larger size counts. Below the smallest and above the largest size, the nearest size counts. For example, if A wins at
  2048 and B at 4096 bytes, then A runs up to 2895 bytes and B from 2896 bytes on.
* Operations whose sizes differ from rank to rank (allgather, alltoall, gather, scatter) cannot be chosen by size,
  because the ranks would not agree on one. One order of candidates serves all sizes: by the sum of their slowdowns,
  each of which is a candidate's time divided by the best time of that size. For example, A with 10 and 40 us at two
  sizes, at which B has 20 and 20 us, has slowdowns 1 and 2, and B has 2 and 1; C with 12 and 22 us has 1.2 and 1.1, and
  runs.
* The candidates behind the winner follow in the same order, over the sizes of the winner's range. The selector takes
  the first candidate that the job has and that can run the operation. A candidate without a time at one of these sizes
  comes behind all others.
* A candidate with wrong results at any size has no rule for that operation and layout.

All measurements are of tensors in the host's memory, so the rules are for these alone. They begin at two ranks: a
single rank has nothing to choose.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from horocache.base.untrusted_text import printable
from horocache.errors import InvalidArgumentError
from horocache.tuning.fingerprint import Fingerprint, fingerprint_here
from horocache.tuning.table import OPERATIONS, Layout, Size, Table, load

SIZES_DIFFER = frozenset({"allgather", "alltoall", "gather", "scatter"})  # wire::SizesDiffer of the core
MAX_RULES = 20_000  # which all ranks get at the start of a job
_FEWEST_RANKS = 2

V = TypeVar("V")
_logger = logging.getLogger("horocache.tuning")


class World(NamedTuple):
    """Number of ranks, and of the hosts on which they are."""

    ranks: int
    hosts: int

    def __str__(self) -> str:
        return f"{self.ranks} ranks on {self.hosts} host{'s' * (self.hosts > 1)}"


@dataclass(frozen=True)
class Band:
    """Sizes with one order of candidates.

    Attributes:
        low: the smallest size in bytes.
        high: the size in bytes before which the band ends; None: it has no end.
        candidates: names, in the order in which the selector tries them.
    """

    low: int
    high: int | None
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """A rule of the selector, in the syntax of ``HOROCACHE_SELECT``; None: a range has no end."""

    op: str
    min_ranks: int
    max_ranks: int | None
    min_hosts: int
    max_hosts: int | None
    low: int
    high: int | None
    candidate: str

    def __str__(self) -> str:
        hosts = "" if (self.min_hosts, self.max_hosts) == (1, None) else _term(self.min_hosts, self.max_hosts, "hosts")
        sizes = "" if (self.low, self.high) == (0, None) else f":{self.low}-{'' if self.high is None else self.high}"
        return f"{self.op},cpu{_term(self.min_ranks, self.max_ranks, 'ranks')}{hosts}{sizes}={self.candidate}"


def _term(low: int, high: int | None, unit: str) -> str:
    if low == high:
        return f",{low}{unit}"
    return f",{low}-{'' if high is None else high}{unit}"


# ---- layouts


def nearest(values: Sequence[int], wanted: int) -> int:
    """Return the number of ``values``, ascending, that is nearest to ``wanted`` by ratio; of two, the larger one."""
    above = bisect_right(values, wanted)
    if above in (0, len(values)):
        return values[max(above - 1, 0)]
    low, high = values[above - 1], values[above]
    return high if wanted * wanted >= low * high else low


def nearest_world(measured: Iterable[World], wanted: World) -> World | None:
    """Return the measured layout that serves ``wanted``, as Note [Rules of a tuning table] defines it; None if none."""
    worlds = [world for world in measured if (world.hosts == 1) == (wanted.hosts == 1)]
    if not worlds:
        return None
    same_hosts = [world for world in worlds if world.hosts == wanted.hosts]
    ranks = nearest(sorted({world.ranks for world in same_hosts or worlds}), wanted.ranks)
    if same_hosts:
        return World(ranks, wanted.hosts)
    return World(ranks, nearest(sorted(world.hosts for world in worlds if world.ranks == ranks), wanted.hosts))


def _turns(values: Iterable[int], first: int, last: int | None) -> list[int]:
    """The numbers from ``first`` to ``last`` at which the nearest of any subset of ``values``, or equality, changes."""
    known = sorted(set(values))
    turns = {first, *known, *(value + 1 for value in known)}
    turns |= {math.isqrt(a * b - 1) + 1 for a, b in itertools.combinations(known, 2)}
    return sorted(turn for turn in turns if turn >= first and (last is None or turn <= last))


def _intervals(turns: Sequence[int], last: int | None) -> Iterator[tuple[int, int | None]]:
    yield from ((low, following - 1) for low, following in itertools.pairwise(turns))
    yield turns[-1], last


# ---- candidates of a layout


def bands_of(op: str, layout: Layout) -> list[Band]:
    """Return the bands of an operation on one layout, ascending, which cover all sizes.

    Returns:
        The bands; empty if no candidate of the layout has a time and right results.
    """
    times = usable_times(layout)
    if not times:
        return []
    sizes = sorted(times)
    if op in SIZES_DIFFER:
        return [Band(0, None, _order([times[size] for size in sizes]))]
    bands: list[Band] = []
    low = 0
    runs = [list(run) for _, run in itertools.groupby(sizes, key=lambda size: _order([times[size]])[0])]
    for run, following in itertools.zip_longest(runs, runs[1:]):
        high = None if following is None else boundary(run[-1], following[0])
        bands.append(Band(low, high, _order([times[size] for size in run])))
        low = high or 0
    return bands


def _usable_bands(op: str, layouts: Iterable[Layout]) -> dict[World, list[Band]]:
    """The bands of an operation by layout, without layouts that have none."""
    bands = {World(one.ranks, one.hosts): bands_of(op, one) for one in layouts}
    return {world: found for world, found in bands.items() if found}


def boundary(size: int, following: int) -> int:
    """Return the geometric mean of two sizes, rounded to a whole number; never the smaller size itself."""
    product = size * following
    root = math.isqrt(product)
    return max(root + (product - root * root > root), size + 1)


def usable_times(layout: Layout) -> dict[int, dict[str, float]]:
    """Return the times in microseconds by size and name, without candidates that had wrong results at any size."""
    wrong = {one.name for size in layout.sizes for one in size.candidates if one.wrong}

    def of_size(size: Size) -> dict[str, float]:
        return {
            one.name: one.median_us for one in size.candidates if one.median_us is not None and one.name not in wrong
        }

    return {size.bytes: times for size in layout.sizes if (times := of_size(size))}


def _order(times: Sequence[dict[str, float]]) -> tuple[str, ...]:
    """The names of candidates, by the number of sizes without a time, then the mean slowdown, then the name."""
    slowdowns: dict[str, list[float]] = defaultdict(list)
    for of_size in times:
        best = min(of_size.values())
        for name, time in of_size.items():
            slowdowns[name].append(time / best)
    return tuple(sorted(slowdowns, key=lambda name: (-len(slowdowns[name]), _mean(slowdowns[name]), name)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# ---- rules


def rules_of(table: Table, ranks: int | None = None, hosts: int | None = None) -> list[Rule]:
    """Return the rules of a table, in the order in which the selector tries them.

    Args:
        table: the table.
        ranks: number of ranks of the job; rules for more are left out. None: unknown.
        hosts: number of hosts of the job; rules for more are left out. None: unknown.

    Raises:
        ValueError: the table has more than :data:`MAX_RULES` rules.
    """
    rules: list[Rule] = []
    for measurements in table.operations:
        usable = _usable_bands(measurements.op, measurements.layouts)
        for rule in _rules_of_operation(measurements.op, usable, ranks, hosts if hosts is not None else ranks):
            if len(rules) == MAX_RULES:
                raise ValueError(f"has more than {MAX_RULES} rules; leave out layouts or sizes.")
            rules.append(rule)
    return rules


def _rules_of_operation(
    op: str, bands: dict[World, list[Band]], ranks: int | None, hosts: int | None
) -> Iterator[Rule]:
    if not bands or (ranks is not None and ranks < _FEWEST_RANKS):
        return
    rank_turns = _turns((world.ranks for world in bands), _FEWEST_RANKS, ranks)
    host_turns = _turns((1, *(world.hosts for world in bands)), 1, hosts)
    by_hosts = []
    for low_hosts, high_hosts in _intervals(host_turns, None):
        served = [
            (low, high, nearest_world(bands, World(low, low_hosts))) for low, high in _intervals(rank_turns, None)
        ]
        by_hosts.append((low_hosts, high_hosts, _merged(served)))
    for low_hosts, high_hosts, worlds in _merged(by_hosts):
        for low, high, world in worlds:
            rule = Rule(op, low, high, low_hosts, high_hosts, 0, None, "")
            for band in [] if world is None else bands[world]:
                for name in band.candidates:
                    yield replace(rule, low=band.low, high=band.high, candidate=name)


def _merged(intervals: Iterable[tuple[int, int | None, V]]) -> list[tuple[int, int | None, V]]:
    """Merge neighbouring intervals with equal values."""
    merged: list[tuple[int, int | None, V]] = []
    for low, high, value in intervals:
        if merged and merged[-1][2] == value:
            merged[-1] = (merged[-1][0], high, value)
        else:
            merged.append((low, high, value))
    return merged


def candidates_for(table: Table, op: str, world: World, num_bytes: int) -> tuple[str, ...]:
    """Return the candidates for an operation, in the order in which the selector tries them.

    Args:
        table: the table.
        op: name of the operation, such as ``allreduce``.
        world: the layout of the process set.
        num_bytes: size in bytes; ignored for operations whose sizes differ from rank to rank.

    Returns:
        Names such as ``shm/oneshot``; empty if the table has no rule.
    """
    usable = _usable_bands(op, table.layouts_of(op))
    measured = nearest_world(usable, world)
    if measured is None or world.ranks < _FEWEST_RANKS:
        return ()
    return next(band.candidates for band in reversed(usable[measured]) if op in SIZES_DIFFER or num_bytes >= band.low)


# ---- the job's rules


def table_rules(
    path: str | os.PathLike[str],
    *,
    ranks: int | None = None,
    hosts: int | None = None,
    strict: bool = False,
    here: Fingerprint | None = None,
) -> str:
    """Read a tuning table, warn of what does not fit this job, and return the selector rules of the table.

    Args:
        path: the file.
        ranks: number of ranks of the job; None: unknown.
        hosts: number of hosts of the job; None: unknown.
        strict: raise an error, instead of a warning, if there is no such file or the table is of another host.
        here: fingerprint of this host; None: it is found out.

    Returns:
        Rules in the syntax of ``HOROCACHE_SELECT``, separated by semicolons; empty if the table has none.

    Raises:
        InvalidArgumentError: the file is not a tuning table, or, with ``strict``, does not exist or is of another host.
    """
    name = f"tuning table {printable(os.fspath(path))}"
    if not os.path.lexists(path):
        _object(strict, f"{name} does not exist; the selector's defaults decide. `horocache tune` makes a table.")
        return ""
    table = load(path)
    differences = (here or fingerprint_here()).differences(table.host)
    if differences:
        _object(
            strict,
            f"{name} was measured on another host, and may choose badly here: this host has "
            f"{'; '.join(differences)}. Measure here with `horocache tune`.",
        )
    try:
        rules = rules_of(table, ranks, hosts)
    except ValueError as error:
        raise InvalidArgumentError(f"{name}: {error}") from None
    _warn_of_missing(name, table, ranks, hosts)
    return ";".join(map(str, rules))


def _object(strict: bool, text: str) -> None:
    if strict:
        raise InvalidArgumentError(text)
    _logger.warning("%s", text)


def _warn_of_missing(name: str, table: Table, ranks: int | None, hosts: int | None) -> None:
    """Warn once of the operations without rules, and once for each layout that stands for the job's."""
    measured: dict[str, list[World]] = {
        each.op: list(_usable_bands(each.op, each.layouts)) for each in table.operations
    }
    missing = [op for op in OPERATIONS if not measured.get(op)]
    if missing:
        _logger.warning("%s has no times of %s; the selector's defaults decide there.", name, ", ".join(missing))
    if ranks is None or ranks < _FEWEST_RANKS:
        return
    wanted = f"{ranks} ranks" if hosts is None else str(World(ranks, hosts))
    instead: dict[str, list[str]] = defaultdict(list)
    for op, worlds in measured.items():
        if worlds and (decides := _instead(worlds, ranks, hosts)):
            instead[decides].append(op)
    for decides, ops in instead.items():
        _logger.warning("%s has no times of %s on %s; %s.", name, ", ".join(ops), wanted, decides)


def _instead(measured: list[World], ranks: int, hosts: int | None) -> str:
    """Tell what decides in a job of a layout that was not measured; empty if it was."""
    if any(world.ranks == ranks and hosts in (None, world.hosts) for world in measured):
        return ""
    # With an unknown number of hosts, the fewest of the table stand for it.
    served = nearest_world(measured, World(ranks, hosts or min(world.hosts for world in measured)))
    return "the selector's defaults decide there" if served is None else f"those on {served} decide"
