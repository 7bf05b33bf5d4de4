"""Experts to the devices of one group by their measured load, and the moves from one placement to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from horocache.errors import InvalidArgumentError
from horocache.moe.placement import mixed_integer
from horocache.moe.placement.errors import missing_memory
from horocache.moe.placement.model import equal_counts
from horocache.moe.placement.topology import Floats, Integers, check_shape, quantities, whole_numbers

SOLVERS = ("auto", "greedy", "milp", "local_search")
_STEPS_PER_EXPERT = 4  # of the local search, at most
_GAIN = 1e-9  # relative; a smaller one is rounding


@dataclass(frozen=True, eq=False)
class Placement:
    """The experts of one group on its devices.

    Attributes:
        expert_map: int64, shape (experts,). The device of each expert, by its place in the group.
        seconds: the time of the device that is ready last.
        solver: ``greedy``, ``milp`` or ``local_search``.
        optimal: True if no placement has a smaller time (for ``milp``, up to a millionth of it).
    """

    expert_map: Integers
    seconds: float
    solver: str
    optimal: bool


@dataclass(frozen=True)
class Move:
    """An expert that another device holds from now on.

    Attributes:
        expert: its number.
        source: the rank that holds it.
        target: the rank that shall hold it.
    """

    expert: int
    source: int
    target: int


def place_experts(loads: npt.ArrayLike, rates: npt.ArrayLike, memory: npt.ArrayLike, solver: str = "auto") -> Placement:
    """Give experts to the devices of a group, so that the last device is ready as early as possible.

    Equal arguments give equal results. Of equal experts and equal devices, the lower numbers come first.

    Args:
        loads: shape (experts,). The measured load of each expert, such as its tokens in the last steps; at least 0.
        rates: shape (n,). Load that each device computes in a second; above 0.
        memory: shape (n,). Experts that each device can hold, as whole numbers.
        solver: ``greedy`` is exact, and takes equal loads alone. ``milp`` is a mixed-integer program (HiGHS, of SciPy)
            that ends after 5,000 nodes of its search; it suits up to about 30 experts. ``local_search`` gives each
            expert, from the largest load on, to the device that is ready first with it, then moves and swaps experts of
            the device that is ready last. ``auto`` is ``greedy`` for equal loads, else ``local_search``.

    Raises:
        PlacementError: the devices cannot hold all experts; the message names the missing memory.
        InvalidArgumentError: an array has a wrong shape, or a value that is not allowed, whose place the message names.
            The solver is unknown, or is ``greedy`` and the loads differ.
        UnsupportedError: ``milp`` needs SciPy, which is not installed.
    """
    load, rate, room = _checked(loads, rates, memory)
    if solver not in SOLVERS:
        raise InvalidArgumentError(f"solver is {solver!r}; it must be one of {', '.join(SOLVERS)}.")
    equal = bool((load == load[0]).all())
    if solver == "greedy" and not equal:
        other = int(np.argmax(load != load[0]))
        raise InvalidArgumentError(
            f"solver 'greedy' takes equal loads, but loads[0] is {load[0]} and loads[{other}] is {load[other]}; use "
            "'local_search' or 'milp'."
        )
    if solver == "greedy" or (solver == "auto" and equal):
        counts = equal_counts(rate.tolist(), room.tolist(), len(load))
        return _placement(np.repeat(np.arange(len(rate)), counts), load, rate, "greedy", True)
    found = _improved(_largest_first(load, rate, room), load, rate, room)
    if solver != "milp":
        return _placement(found, load, rate, "local_search", False)
    proposed, optimal = mixed_integer.place(load, rate, room)
    if proposed is not None and _seconds(proposed, load, rate).max() < _seconds(found, load, rate).max():
        found = proposed
    return _placement(found, load, rate, "milp", optimal)


def _checked(loads: npt.ArrayLike, rates: npt.ArrayLike, memory: npt.ArrayLike) -> tuple[Floats, Floats, Integers]:
    load = quantities("loads", loads)
    if load.ndim != 1 or not load.size:
        raise InvalidArgumentError(f"loads has shape {load.shape}; it must be (experts,), with at least 1 expert.")
    rate = quantities("rates", rates, positive=True)
    if rate.ndim != 1 or not rate.size:
        raise InvalidArgumentError(f"rates has shape {rate.shape}; it must be (n,), with n of at least 1 device.")
    room = whole_numbers("memory", memory)
    check_shape("memory", room, rate.shape, "one number of experts for each of the devices of rates")
    if sum(room.tolist()) < load.size:
        raise missing_memory(load.size, room.tolist())
    with np.errstate(over="ignore"):
        if not np.isfinite(load.sum() / rate.min()) or not np.isfinite(rate.sum()):
            raise InvalidArgumentError("the sum of loads / rates is infinite; use smaller loads or larger rates.")
    return load, rate, room


def _seconds(devices: Integers, loads: Floats, rates: Floats) -> Floats:
    """The time of each device."""
    return np.bincount(devices, weights=loads, minlength=len(rates)) / rates


def _placement(devices: Integers, loads: Floats, rates: Floats, solver: str, optimal: bool) -> Placement:
    devices = devices.astype(np.int64)
    devices.flags.writeable = False
    return Placement(devices, float(_seconds(devices, loads, rates).max()), solver, optimal)


def _largest_first(loads: Floats, rates: Floats, memory: Integers) -> Integers:
    """Longest processing time first (Graham, "Bounds on multiprocessing timing anomalies", 1969), within the memory."""
    devices = np.zeros(len(loads), np.int64)
    total = np.zeros(len(rates))
    room = memory.copy()
    for expert in np.argsort(-loads, kind="stable"):
        ready = np.where(room > 0, (total + loads[expert]) / rates, np.inf)
        device = int(np.argmin(ready))
        devices[expert] = device
        total[device] += loads[expert]
        room[device] -= 1
    return devices


def _improved(devices: Integers, loads: Floats, rates: Floats, memory: Integers) -> Integers:
    """Move or swap an expert of the device that is ready last, as long as both devices are then ready earlier."""
    devices = devices.copy()
    for _ in range(_STEPS_PER_EXPERT * len(loads)):
        seconds = _seconds(devices, loads, rates)
        last = int(np.argmax(seconds))
        here, there = np.flatnonzero(devices == last), np.flatnonzero(devices != last)
        room = (np.bincount(devices, minlength=len(rates)) < memory) & (np.arange(len(rates)) != last)
        load = loads[here, None]
        moved = np.maximum(seconds[last] - load / rates[last], seconds + load / rates)
        moved = np.where(room, moved, np.inf)
        others, more = devices[there], load - loads[there]
        swapped = np.maximum(seconds[last] - more / rates[last], seconds[others] + more / rates[others])
        best_move, best_swap = moved.min(), swapped.min(initial=np.inf)
        if min(best_move, best_swap) >= seconds[last] * (1 - _GAIN):
            break
        if best_move <= best_swap:
            expert, device = np.unravel_index(int(np.argmin(moved)), moved.shape)
            devices[here[expert]] = device
        else:
            expert, other = np.unravel_index(int(np.argmin(swapped)), swapped.shape)
            devices[here[expert]], devices[there[other]] = others[other], last
    return devices


def improved_map(
    loads: npt.ArrayLike,
    current: npt.ArrayLike,
    ranks: int,
    rates: npt.ArrayLike | None = None,
    memory: npt.ArrayLike | None = None,
    gain: float = 0.05,
) -> list[int]:
    """Return a map from experts to ranks that balances measured loads, near the current one.

    The local search of :func:`place_experts` begins with the current map, so that few experts move. Its result is taken
    if the last rank is ready earlier by the part ``gain``. If :func:`place_experts` finds a map that is better than
    that by as much again, its map is taken. Equal arguments give equal results.

    Example: experts 0 to 3 with the loads 4, 3, 1, 0 are on ranks 0, 0, 1, 1, which have 7 and 1 and room for two. If
    experts 0 and 2 change places, both have 4.

    Args:
        loads: shape (experts,). The load of each expert, such as its tokens in the last steps; at least 0.
        current: shape (experts,). The rank of each expert.
        ranks: number of ranks.
        rates: shape (ranks,). Load that each rank computes in a second; above 0. None: equal on all ranks.
        memory: shape (ranks,). Experts that each rank can hold. None: as many as the fullest rank has now.
        gain: the least relative gain for which experts move, from 0 to 1.

    Raises:
        PlacementError: the ranks cannot hold all experts. InvalidArgumentError: an array has a wrong shape, or a value
            that is not allowed.
    """
    now = whole_numbers("current", current)
    if rates is not None:
        check_shape("rates", quantities("rates", rates, positive=True), (ranks,), "a rate for each rank")
    if memory is not None:
        check_shape("memory", whole_numbers("memory", memory), (ranks,), "a number of experts for each rank")
    load, rate, room = _checked(
        loads,
        np.ones(ranks) if rates is None else rates,
        np.full(ranks, np.bincount(now, minlength=1).max()) if memory is None else memory,
    )
    check_shape("current", now, load.shape, "a rank for each of the experts of loads")
    if (now >= ranks).any():
        raise InvalidArgumentError(f"current has rank {now.max()}, and there are the ranks 0 to {ranks - 1}.")
    if not 0 <= gain <= 1:
        raise InvalidArgumentError(f"gain is {gain!r}; it must be from 0 to 1.")
    best, seconds = now, float(_seconds(now, load, rate).max())
    if (np.bincount(now, minlength=ranks) > room).any():
        seconds = np.inf  # the current map does not fit any more
    candidates = [place_experts(load, rate, room).expert_map]
    if seconds < np.inf:
        candidates.insert(0, _improved(now, load, rate, room))
    for candidate in candidates:
        found = float(_seconds(candidate, load, rate).max())
        if found < seconds * (1 - gain) or seconds == np.inf:
            best, seconds = candidate, found
    result: list[int] = best.tolist()
    return result


def moves(old: npt.ArrayLike, new: npt.ArrayLike) -> tuple[Move, ...]:
    """Return the experts that change their rank between two placements, in the order of their numbers.

    Args:
        old: shape (experts,). The rank that holds each expert, such as ``Placement.expert_map``.
        new: the same for the placement that follows.

    Raises:
        InvalidArgumentError: the shapes differ or are not (experts,), or a rank is negative or not a whole number.
    """
    before, after = whole_numbers("old", old), whole_numbers("new", new)
    if before.ndim != 1:
        raise InvalidArgumentError(f"old has shape {before.shape}; it must be (experts,).")
    check_shape("new", after, before.shape, "a rank for each of the experts of old")
    return tuple(Move(int(e), int(before[e]), int(after[e])) for e in np.flatnonzero(before != after))
