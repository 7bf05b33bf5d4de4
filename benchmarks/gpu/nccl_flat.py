"""Calibration of NCCL with a flat buffer: memory of its own, registration, and many tensors as one.

One thread drives all ranks, each step in a group; so a device time is that of all ranks, from their common start to
the end of the last. With one rank an allreduce in place does nothing, and out of place it is a copy: only the host's
times and the return codes mean something there.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.architectures import load
from benchmarks.gpu import party as parties
from benchmarks.gpu.nccl import OPERATIONS, TYPE, WINDOW_SYMMETRIC, Rank, Result
from benchmarks.gpu.packing_kernels import UNPACK, Packer
from benchmarks.gpu.party import RANKS, SHARED_GPU
from benchmarks.gpu.record import CallError, median
from benchmarks.gpu.session import NcclChecks, Session
from benchmarks.gpu.timing import KIB, MIB, Clock, Times, figure, label
from benchmarks.gpu.two_ranks import shared_gpu

REF = ctypes.byref
Array = npt.NDArray[Any]
OK = Result.Success
FLOAT, SUM = TYPE["float32"].number, OPERATIONS["sum"]
SIZES = {4: 40, 64 * KIB: 30, 16 * MIB: 10, 256 * MIB: 5}  # bytes and repetitions
LARGEST = max(SIZES)
SIDES = ("source", "target")
ODD = 100_003  # elements of a checked result
CALL = "ncclAllReduce"


class Team:
    """All ranks of a communicator, driven by one thread."""

    def __init__(self, session: Session, ranks: int, words: str = "") -> None:
        driver = session.cuda().library
        self.checks: NcclChecks = session.nccl()
        self.driver = driver
        self.nccl = self.checks.library
        self.ranks = [Rank(driver, self.nccl, ranks, number, 4096) for number in range(ranks)]
        self.words = ("1 rank" if ranks == 1 else f"{ranks} ranks") + (words and f", {words}")
        self.packer = Packer(driver)
        self.clock = Clock(driver, self.ranks[0].stream)
        self._fork = driver.event()
        self._joins = [driver.event() for _ in self.ranks]
        unique_id, made = self.nccl.unique_id(), [c_void_p() for _ in self.ranks]
        with self.group():
            for number, place in enumerate(made):
                self.nccl.must("ncclCommInitRank", REF(place), ranks, unique_id, number)
        for rank, place in zip(self.ranks, made, strict=True):
            rank.communicator = place.value or 0

    @contextmanager
    def group(self) -> Iterator[None]:
        """Calls of several ranks; one rank makes its calls without a group."""
        if len(self.ranks) == 1:
            yield
            return
        self.nccl.must("ncclGroupStart")
        try:
            yield
        finally:
            self.nccl.must("ncclGroupEnd")

    def run(self, calls: Callable[[], None]) -> None:
        """Calls on the streams of all ranks: all begin after rank 0's stream came here, and it waits for all."""
        first, driver = self.ranks[0].stream, self.driver
        if len(self.ranks) > 1:
            driver.must("cuEventRecord", self._fork, first)
            for rank in self.ranks[1:]:
                driver.must("cuStreamWaitEvent", rank.stream, self._fork, 0)
        calls()
        for rank, join in zip(self.ranks[1:], self._joins[1:], strict=True):
            driver.must("cuEventRecord", join, rank.stream)
            driver.must("cuStreamWaitEvent", first, join, 0)

    def reduce(self, buffers: Buffers, count: int, in_place: bool = False) -> None:
        """Queue an allreduce of all ranks."""
        with self.group():
            for rank, (source, target) in zip(self.ranks, buffers.pairs, strict=True):
                to = source if in_place else target
                self.nccl.must(CALL, source, to, count, FLOAT, SUM, rank.communicator, rank.stream)

    def settle(self) -> None:
        """Wait until all streams are idle."""
        for rank in self.ranks:
            rank.settle(6)


@dataclass
class Buffers:
    """A source and a target of each rank."""

    words: str
    pairs: list[tuple[int, int]]
    size: int

    def places(self) -> list[int]:
        """The addresses, rank by rank."""
        return [place for pair in self.pairs for place in pair]


def one(session: Session) -> None:
    """One rank: cost of memory and registration; allreduce of each kind of memory; many tensors as one."""
    team = Team(session, 1)
    session.run((_allocation, _registration, _plain, _registered, _windows, _gradients), team)


def two(session: Session) -> None:
    """Two ranks on one GPU, with at most 2 CTAs and with NCCL's choice; the windows in a process of their own."""
    if not shared_gpu(session):
        return
    chosen = {key: value for key, value in SHARED_GPU.items() if key != "NCCL_MAX_CTAS"}
    for words, environment in (("at most 2 CTAs", SHARED_GPU), ("NCCL's choice of CTAs", chosen)):
        for part in ("plain", "windows"):
            helper = session.helper("nccl_flat:part_of_two", environment, part=part, words=words)
            parties.report(session, "one thread", f"flat, {part}, {words}", [helper.finish(16)])


def part_of_two(session: Session, part: str, words: str) -> None:
    """A process of the section."""
    team = Team(session, RANKS, words)
    session.run((_plain, _registered, _gradients) if part == "plain" else (_windows,), team)


# ---- memory and registration


def _allocate(team: Team, size: int) -> int:
    pointer = c_void_p()
    team.nccl.must("ncclMemAlloc", REF(pointer), size)
    return pointer.value or 0


def _buffers(team: Team, words: str, allocate: Callable[[int], int], size: int = LARGEST) -> Buffers:
    return Buffers(words, [(allocate(size), allocate(size)) for _ in team.ranks], size)


def _timed(function: Callable[[], object]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = function()
    return result, (time.perf_counter() - start) * 1e6


def _allocation(team: Team) -> None:
    """Cost of memory, and how much of it disappears."""
    driver, free, total = team.driver, c_size_t(), c_size_t()
    ways: dict[str, tuple[Callable[[int], int], str]] = {
        "cuMemAlloc_v2": (driver.allocate, "cuMemFree_v2"),
        "ncclMemAlloc": (lambda size: _allocate(team, size), "ncclMemFree"),
    }
    for (call, (allocate, release)), size in itertools.product(ways.items(), (64 * KIB, 16 * MIB, LARGEST)):
        taken, freed, used = list[float](), list[float](), list[int]()
        for _ in range(8):
            driver.must("cuMemGetInfo_v2", REF(free), REF(total))
            before = free.value
            pointer, us = _timed(lambda allocate=allocate, size=size: allocate(size))  # type: ignore[misc]
            taken.append(us)
            driver.must("cuMemGetInfo_v2", REF(free), REF(total))
            used.append(before - free.value)
            library = driver if release == "cuMemFree_v2" else team.nccl
            start = time.perf_counter()
            library.must(release, pointer)
            freed.append((time.perf_counter() - start) * 1e6)
        note = f"takes {used[-1] / MIB:g} MiB of the device; first {taken[0]:.0f} us"
        figure(team.checks, f"{call}, {label(size)}", call, label(size), taken[1:], note)
        figure(team.checks, f"{release}, {label(size)}", release, label(size), freed[1:])


def _registration(team: Team) -> None:
    """Return codes and cost of registration, by kind of memory."""
    communicator = team.ranks[0].communicator
    memories = {"ncclMemAlloc": _allocate(team, LARGEST), "cuMemAlloc": team.driver.allocate(LARGEST)}
    for (words, memory), size in itertools.product(memories.items(), (16 * MIB, LARGEST)):
        for call, undo, more in (
            ("ncclCommRegister", "ncclCommDeregister", ()),
            ("ncclCommWindowRegister", "ncclCommWindowDeregister", (WINDOW_SYMMETRIC,)),
        ):
            function = team.nccl.find(call)
            if function is None or (words == "cuMemAlloc" and more):
                continue  # nccl-calls has the error that a window of other memory gives
            registered, removed, codes, handle = list[float](), list[float](), set[str](), c_void_p()
            for _ in range(6):
                arguments = (communicator, memory, size, REF(handle), *more)
                start = time.perf_counter()
                code = function(*arguments)
                registered.append((time.perf_counter() - start) * 1e6)
                codes.add(team.nccl.code_name(code))
                if code != 0:
                    break
                if handle.value:
                    start = time.perf_counter()
                    team.nccl.must(undo, communicator, handle)
                    removed.append((time.perf_counter() - start) * 1e6)
            name = f"{call}, {label(size)} of {words}"
            seen = f"{', '.join(sorted(codes))}, {'a handle' if handle.value else 'no handle'}"
            team.checks.fact(f"codes of {name}", call, words, seen)
            figure(team.checks, name, call, words, registered, f"first {registered[0]:.0f} us")
            if removed:
                figure(team.checks, f"{undo}, {label(size)} of {words}", undo, words, removed)


# ---- allreduce by kind of memory


def _plain(team: Team) -> None:
    for words, allocate in (("cuMemAlloc", team.driver.allocate), ("ncclMemAlloc", lambda size: _allocate(team, size))):
        _allreduces(team, _buffers(team, f"{words}, not registered", allocate))


def _registered(team: Team) -> None:
    """Both kinds of memory, registered with ncclCommRegister."""
    for words, allocate in (("ncclMemAlloc", lambda size: _allocate(team, size)), ("cuMemAlloc", team.driver.allocate)):
        buffers, handles = _buffers(team, f"{words}, registered", allocate), list[tuple[int, c_void_p]]()
        for rank, pair in zip(team.ranks, buffers.pairs, strict=True):
            for side, place in zip(SIDES, pair, strict=True):
                handle = c_void_p()
                arguments = (rank.communicator, place, buffers.size, REF(handle))
                name = f"{team.words}: register the {side} of rank {rank.rank}, {buffers.words}"
                team.checks(name, "ncclCommRegister", words, *arguments, expect=OK)
                handles.append((rank.communicator, handle))
        _allreduces(team, buffers)
        for communicator, handle in handles:
            if handle.value:
                team.nccl.must("ncclCommDeregister", communicator, handle)


def _windows(team: Team) -> None:
    """Symmetric windows: the allreduces, and the gradients in one."""
    if team.nccl.find("ncclCommWindowRegister") is None:
        return
    buffers = _buffers(team, "ncclMemAlloc, symmetric window", lambda size: _allocate(team, size))
    windows = _open_windows(team, buffers)
    if windows is None:
        return
    _allreduces(team, buffers)
    _fused(team, _Gradients(team), buffers)
    with team.group():
        for index, ((rank, _), window) in enumerate(zip(_placed(team, buffers), windows, strict=True)):
            name = f"{team.words}: close the window of the {SIDES[index // len(team.ranks)]} of rank {rank.rank}"
            team.checks(name, "ncclCommWindowDeregister", "", rank.communicator, window)


def _placed(team: Team, buffers: Buffers) -> list[tuple[Rank, int]]:
    return [(rank, pair[side]) for side in (0, 1) for rank, pair in zip(team.ranks, buffers.pairs, strict=True)]


def _open_windows(team: Team, buffers: Buffers) -> list[c_void_p] | None:
    """A window of each buffer: the ranks' sources together, then their targets; None if that fails."""
    windows, call = list[c_void_p](), "ncclCommWindowRegister"
    placed, count = _placed(team, buffers), len(team.ranks)
    for first in range(0, len(placed), count):
        start, codes = time.perf_counter(), list[str]()
        team.checks.recorder.begin(f"{team.words}: open windows", call)
        try:
            with team.group():
                for rank, place in placed[first : first + count]:
                    windows.append(c_void_p())
                    arguments = (rank.communicator, place, buffers.size, REF(windows[-1]), WINDOW_SYMMETRIC)
                    codes.append(team.nccl.code_name(getattr(team.nccl, call)(*arguments)))
        except CallError as error:
            codes.append(str(error))
        ms = (time.perf_counter() - start) * 1000
        handles = [window.value is not None for window in windows[first:]]
        seen = "ncclSuccess" if set(codes) == {"ncclSuccess"} and all(handles) else f"{codes}, handles {handles}"
        name = f"{team.words}: open windows of the {'targets' if first else 'sources'}"
        team.checks.fact(name, call, label(buffers.size), seen, "ncclSuccess", ms=ms)
        if seen != "ncclSuccess":
            return None
    return windows


def _values(rank: int, count: int) -> Array:
    """Integers, whose sums are exact."""
    return (np.arange(count) % 1009 + 1000 * (rank + 1)).astype(np.float32)


def _allreduces(team: Team, buffers: Buffers) -> None:
    """Result and time of allreduce over these buffers."""
    driver, words = team.driver, f"{team.words}: {buffers.words}"
    wanted = sum((_values(rank.rank, ODD) for rank in team.ranks), np.zeros(ODD, np.float32))
    for in_place in (False, True):
        for rank, (source, target) in zip(team.ranks, buffers.pairs, strict=True):
            driver.upload(source, _values(rank.rank, ODD).tobytes())
            driver.upload(target, b"\xff" * (4 * ODD + 64))
        team.reduce(buffers, ODD, in_place)
        team.settle()
        for rank, pair in zip(team.ranks, buffers.pairs, strict=True):
            data = driver.download(pair[0 if in_place else 1], 4 * ODD + 64)
            right = np.array_equal(np.frombuffer(data[: 4 * ODD], np.float32), wanted)
            intact = in_place or data[4 * ODD :] == b"\xff" * 64
            seen = "exact" if right and intact else f"right: {right}, memory behind intact: {intact}"
            name = f"{words}, result of rank {rank.rank}, {'in' if in_place else 'out of'} place"
            team.checks.fact(name, CALL, f"{ODD} float32", seen, "exact")
    for (size, repetitions), in_place in itertools.product(SIZES.items(), (False, True)):
        times = team.clock.measure(
            lambda size=size, in_place=in_place: team.run(  # type: ignore[misc]
                lambda: team.reduce(buffers, size // 4, in_place)
            ),
            repetitions,
            hold_ms=2,
        )
        note = "one rank in place has nothing to do" if in_place and len(team.ranks) == 1 else ""
        _row(team, f"{buffers.words}, {label(size)}, {'in' if in_place else 'out of'} place", times, note)


def _row(team: Team, words: str, times: Times, note: str = "") -> None:
    note = "; ".join(part for part in (note, times.note()) if part)
    team.checks.figure(f"{team.words}: {words}, device", CALL, words, times.us, "us", note)
    team.checks.figure(f"{team.words}: {words}, host", CALL, words, median(times.host), "us")


# ---- many tensors as one


class _Gradients:
    """Every rank's gradients of ResNet-50, where a framework's allocator places them, and a second set for results."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.counts = [math.prod(shape) for _, shape in load("ResNet-50")]
        starts, places, start, place = list[int](), list[int](), 0, 0
        for count in self.counts:
            starts.append(start)
            places.append(place)
            start = -(-(start + count) // 128) * 128
            place = -(-(place + count) // 4) * 4
        self.starts, self.places, self.span, self.length = starts, places, start, place
        self.sources = [team.driver.allocate(4 * start) for _ in team.ranks]
        self.targets = [team.driver.allocate(4 * start) for _ in team.ranks]
        for rank, source in zip(team.ranks, self.sources, strict=True):
            team.driver.upload(source, _values(rank.rank, start).tobytes())
        self.packed = [self._table(source) for source in self.sources]
        self.unpacked = [self._table(target) for target in self.targets]

    def _table(self, base: int) -> Any:
        tensors = [(base + 4 * s, p, count) for s, p, count in zip(self.starts, self.places, self.counts, strict=True)]
        return self.team.packer.table(tensors)

    def clear(self) -> None:
        """Poison the results."""
        for target in self.targets:
            self.team.driver.upload(target, b"\xff" * (4 * self.span))

    def verify(self, words: str) -> None:
        """Compare the results with NumPy's sums."""
        ranks = self.team.ranks
        wanted = sum((_values(rank.rank, self.span) for rank in ranks), np.zeros(self.span, np.float32))
        for rank, target in zip(ranks, self.targets, strict=True):
            seen = np.frombuffer(self.team.driver.download(target, 4 * self.span), np.float32)
            wrong = sum(
                not np.array_equal(seen[start : start + count], wanted[start : start + count])
                for start, count in zip(self.starts, self.counts, strict=True)
            )
            name = f"{self.team.words}: {words}, result of rank {rank.rank}"
            self.team.checks.fact(
                name, CALL, f"{len(self.counts)} tensors", f"{wrong} tensors wrong", "0 tensors wrong"
            )


def _gradients(team: Team) -> None:
    """A group of 161 allreduces; one of the flat buffer; packing, that, and unpacking."""
    gradients = _Gradients(team)
    ranges = list(zip(gradients.starts, gradients.counts, strict=True))

    def grouped() -> None:
        team.nccl.must("ncclGroupStart")
        for rank, source, target in zip(team.ranks, gradients.sources, gradients.targets, strict=True):
            for start, count in ranges:
                place = 4 * start
                team.nccl.ncclAllReduce(
                    source + place, target + place, count, FLOAT, SUM, rank.communicator, rank.stream
                )
        team.nccl.must("ncclGroupEnd")

    words = "161 allreduces in a group"
    gradients.clear()
    team.run(grouped)
    team.settle()
    gradients.verify(words)
    _row(team, words, team.clock.measure(lambda: team.run(grouped), 10, hold_ms=6))
    wall = team.clock.wall(lambda: team.run(grouped), 10)
    figure(team.checks, f"{team.words}: {words}, to completion", CALL, team.words, wall)
    _fused(team, gradients, _buffers(team, "cuMemAlloc", team.driver.allocate, 4 * gradients.length))


def _fused(team: Team, gradients: _Gradients, flat: Buffers) -> None:
    """One allreduce of the flat buffer, alone and between packing and unpacking."""
    length = gradients.length
    kinds = list(zip(team.ranks, flat.pairs, gradients.packed, gradients.unpacked, strict=True))
    packs = [team.packer.launch(table, pair[0], rank.stream, "b32") for rank, pair, table, _ in kinds]
    unpacks = [team.packer.launch(table, pair[1], rank.stream, "b32", UNPACK) for rank, pair, _, table in kinds]
    in_place = [team.packer.launch(table, pair[0], rank.stream, "b32", UNPACK) for rank, pair, _, table in kinds]

    def whole(last: list[Callable[[], None]]) -> None:
        for pack in packs:
            pack()
        team.reduce(flat, length, in_place=last is in_place)
        for unpack in last:
            unpack()

    def alone() -> None:
        team.reduce(flat, length)

    def out_of() -> None:
        whole(unpacks)

    def inside() -> None:
        whole(in_place)

    steps = {
        "pack, allreduce, unpack, out of place": out_of,
        "pack, allreduce, unpack, in place": inside,
        "allreduce of the flat buffer alone": alone,
    }
    for words, step in steps.items():
        name = f"{words}, {flat.words}"
        gradients.clear()
        team.run(step)
        team.settle()
        if step is not alone:
            gradients.verify(name)
        _row(team, name, team.clock.measure(lambda step=step: team.run(step), 10, hold_ms=1))  # type: ignore[misc]
        wall = team.clock.wall(lambda step=step: team.run(step), 10)  # type: ignore[misc]
        figure(team.checks, f"{team.words}: {name}, to completion", CALL, team.words, wall)
