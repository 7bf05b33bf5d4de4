"""Calibration of collectives by way of host memory: overlap of copies, ways to wait, folds, pipelines of tiles."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_float, c_uint
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.cuda import BLOCKING_SYNC, DISABLE_TIMING, PORTABLE, Code, Driver, HostFunction, SharedMemory
from benchmarks.gpu.gate import Gate
from benchmarks.gpu.record import CallError, median
from benchmarks.gpu.session import CudaChecks, Session
from benchmarks.gpu.timing import KIB, MIB, figure, label, spread

REF = ctypes.byref
Array = npt.NDArray[Any]
TOTALS = {MIB: 15, 16 * MIB: 9, 64 * MIB: 7, 256 * MIB: 7}  # bytes and repetitions
TILES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
LARGEST = max(TOTALS)
MOST_TILES = 1024
AHEAD = 8  # tiles whose copy from the device is under way or done
LIMIT_S = 10.0
SEED = 20261127
DOWN, UP = "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"


def staging(session: Session) -> None:
    """Overlap of both ways, ways to wait for a tile, folds by NumPy, pipelines of tiles for one and two ranks."""
    checks = session.cuda()
    sys.setswitchinterval(5e-5)
    session.run((_overlap, _folds, _pipelines, _waits), checks)  # a wait that never ends costs only the last


# ---- do copies of both ways overlap?


def _overlap(checks: CudaChecks) -> None:
    driver, size = checks.library, 64 * MIB
    shared = SharedMemory(4 * size)
    shared.touch()
    driver.must("cuMemHostRegister_v2", shared.address, 4 * size, PORTABLE)
    devices = [driver.allocate(size) for _ in range(4)]
    streams = [driver.stream() for _ in range(4)]
    places = [shared.address + index * size for index in range(4)]
    for piece in (64 * MIB, 4 * MIB, MIB, 256 * KIB):

        def copies(*numbers: int, piece: int = piece) -> None:
            """Even numbers copy from the device, odd ones to it; the pieces of all take turns."""
            for offset in range(0, size, piece):
                for number in numbers:
                    device, host = devices[number] + offset, places[number] + offset
                    if number % 2:
                        driver.cuMemcpyHtoDAsync_v2(device, host, piece, streams[number])
                    else:
                        driver.cuMemcpyDtoHAsync_v2(host, device, piece, streams[number])

        words = f"64 MiB in pieces of {label(piece)}"
        alone = [_together(driver, streams[number : number + 1], partial(copies, number)) for number in range(2)]
        both = _together(driver, streams[:2], partial(copies, 0, 1))
        figure(checks, f"from the device alone, {words}", DOWN, words, alone[0])
        figure(checks, f"to the device alone, {words}", UP, words, alone[1])
        share = median(both) / (median(alone[0]) + median(alone[1]))
        rate = 2 * size / median(both) / 1e3
        note = f"{share:.0%} of the sum of both alone; {rate:.1f} GB/s together"
        figure(checks, f"both ways on two streams, {words}", f"{DOWN}, {UP}", words, both, note)
        twice = _together(driver, [streams[0], streams[2]], partial(copies, 0, 2))
        note = f"{median(twice) / median(alone[0]):.2f} times one alone"
        figure(checks, f"twice from the device on two streams, {words}", DOWN, words, twice, note)


def _together(driver: Driver, streams: list[int], enqueue: Callable[[], None], repetitions: int = 7) -> list[float]:
    """Microseconds on the device from the common start of the streams to the end of the last."""
    start, end, ms = driver.event(0), driver.event(0), c_float()
    joins = [driver.event() for _ in streams]
    times = []
    for _ in range(repetitions + 2):
        driver.busy(streams[0], 4)
        driver.must("cuEventRecord", start, streams[0])
        for stream in streams[1:]:
            driver.must("cuStreamWaitEvent", stream, start, 0)
        enqueue()
        for stream, join in zip(streams[1:], joins[1:], strict=True):
            driver.must("cuEventRecord", join, stream)
            driver.must("cuStreamWaitEvent", streams[0], join, 0)
        driver.must("cuEventRecord", end, streams[0])
        driver.synchronize(streams[0])
        driver.must("cuEventElapsedTime_v2", REF(ms), start, end)
        times.append(ms.value * 1000)
    return times[2:]


# ---- ways to wait for a tile


class _Ways:
    """Ways in which the CPU learns that a stream came to a place."""

    def __init__(self, driver: Driver, gate: Gate, stream: int) -> None:
        self._driver = driver
        self._gate = gate
        self._stream = stream
        self._numbers = driver.allocate(16 * KIB)  # of every turn of the gate
        driver.upload(self._numbers, np.arange(4 * KIB, dtype=np.uint32).tobytes())
        self._libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(64)
        self._libc.sem_init(self._semaphore, 0, 0)
        self._value = c_uint.from_address(ctypes.addressof(self._semaphore))
        self._post = ctypes.cast(self._libc.sem_post, HostFunction)  # native code: the interpreter has no part in it
        self._host_function()  # the first one starts the driver's thread
        self._sleep()

    def all(self) -> dict[str, tuple[Callable[[], None], Callable[[], object]]]:
        """By name: the function that queues the signal, and the one that waits for it."""
        driver, gate, stream = self._driver, self._gate, self._stream
        plain, blocking = driver.event(), driver.event(BLOCKING_SYNC | DISABLE_TIMING)
        record = partial(driver.must, "cuEventRecord")
        synchronize = partial(driver.must, "cuEventSynchronize")

        def query() -> None:
            _until(lambda: driver.cuEventQuery(plain) != Code.NOT_READY)

        return {
            "cuStreamWriteValue32_v2, memory polled": (partial(gate.signal, stream), gate.watch),
            "copy of a 4-byte flag, memory polled": (self._copy_number, gate.watch),
            "cuEventQuery polled": (partial(record, plain, stream), query),
            "cuEventSynchronize": (partial(record, plain, stream), partial(synchronize, plain)),
            "cuEventSynchronize, BLOCKING_SYNC": (partial(record, blocking, stream), partial(synchronize, blocking)),
            "cuStreamSynchronize": (lambda: None, partial(driver.synchronize, stream)),
            "cuLaunchHostFunc of sem_post, semaphore polled": (self._host_function, self._poll),
            "cuLaunchHostFunc of sem_post, sem_wait": (self._host_function, self._sleep),
        }

    def _copy_number(self) -> None:
        place = self._numbers + 4 * self._gate.turn
        self._driver.must(DOWN, self._gate.flag_address, place, 4, self._stream)

    def _host_function(self) -> None:
        address = ctypes.addressof(self._semaphore)
        self._driver.must("cuLaunchHostFunc", self._stream, self._post, address)

    def _poll(self) -> None:
        _until(lambda: self._value.value > 0)
        self._sleep()

    def _sleep(self) -> None:
        self._libc.sem_wait(self._semaphore)


def _until(function: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not function():
        if time.monotonic() > deadline:
            raise CallError("no signal", -1)


def _waits(checks: CudaChecks) -> None:
    """From a gate that opens to the CPU that knows that the copy behind the gate is complete."""
    driver, gate, stream = checks.library, Gate(checks.library), checks.library.stream()
    shared, device = SharedMemory(4 * MIB), driver.allocate(4 * MIB)
    driver.must("cuMemHostRegister_v2", shared.address, 4 * MIB, PORTABLE)
    ways = _Ways(driver, gate, stream).all()
    for size, (words, (signal, wait)) in itertools.product((64 * KIB, 4 * MIB), ways.items()):
        host: list[float] = []

        def enqueue(size: int = size, signal: Callable[[], None] = signal, host: list[float] = host) -> None:
            driver.must(DOWN, shared.address, device, size, stream)
            start = time.perf_counter()
            signal()
            host.append((time.perf_counter() - start) * 1e6)

        checks.recorder.begin(words, words)
        times = gate.latency(stream, enqueue, wait, 60)
        note = f"to queue the signal: host {median(host):.2f} us"
        name = f"gate, copy of {label(size)} from the device, {words}"
        figure(checks, name, words.split()[0].rstrip(",") if words.startswith("cu") else DOWN, label(size), times, note)


# ---- folds


def _folds(checks: CudaChecks) -> None:
    """NumPy's sums of float32 in shared memory, which is how fast the pipelines below can fold."""
    size = 64 * MIB
    shared = SharedMemory(3 * size)
    shared.touch()
    views = [_floats(shared.address + index * size, size) for index in range(3)]
    for tile in (*TILES, size):
        times = []
        for _ in range(4):
            start = time.perf_counter()
            for first in range(0, size // 4, tile // 4):
                part = slice(first, first + tile // 4)
                np.add(views[0][part], views[1][part], out=views[2][part])
            times.append((time.perf_counter() - start) * 1e6)
        note = f"{size / median(times[1:]) / 1e3:.2f} GB/s of result"
        figure(checks, f"fold of 64 MiB in tiles of {label(tile)}", "numpy.add", "1 thread", times[1:], note)
    for threads in (2, 4, 8):
        with ThreadPoolExecutor(threads) as pool:
            parts = [slice(n * size // 4 // threads, (n + 1) * size // 4 // threads) for n in range(threads)]
            times = []
            for _ in range(5):
                start = time.perf_counter()
                list(pool.map(lambda part: np.add(views[0][part], views[1][part], out=views[2][part]), parts))
                times.append((time.perf_counter() - start) * 1e6)
        note = f"{size / median(times[1:]) / 1e3:.2f} GB/s of result"
        figure(checks, f"fold of 64 MiB by {threads} threads", "numpy.add", f"{threads} threads", times[1:], note)


def _floats(address: int, size: int) -> Array:
    return np.frombuffer(memoryview((ctypes.c_ubyte * size).from_address(address)), np.float32)


# ---- pipelines


@dataclass
class _Rank:
    """A rank's buffers on the device, its part of the host's memory, streams for both ways, events of its tiles."""

    driver: Driver
    source: int
    target: int
    host: int  # address
    own: Array  # the memory there
    down: int
    up: int
    events: list[int]

    def fetch(self, tile: int, first: int, count: int) -> None:
        """Start copying a tile from the device."""
        self.driver.must(DOWN, self.host + 4 * first, self.source + 4 * first, 4 * count, self.down)
        self.driver.must("cuEventRecord", self.events[tile % len(self.events)], self.down)

    def await_tile(self, tile: int) -> None:
        """Poll until a tile is in the host's memory."""
        query, event = self.driver.cuEventQuery, self.events[tile % len(self.events)]
        while (code := query(event)) == Code.NOT_READY:
            pass
        if code != 0:
            raise CallError(f"cuEventQuery: {self.driver.code_name(code)}", code)

    def send(self, address: int, first: int, count: int) -> None:
        """Start copying a tile to the device."""
        self.driver.must(UP, self.target + 4 * first, address + 4 * first, 4 * count, self.up)


@dataclass
class _Stage:
    """Two ranks' buffers, and the host's memory for both and for the result."""

    driver: Driver
    ranks: list[_Rank] = field(default_factory=list)
    result: int = 0
    folded: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    values: list[Array] = field(default_factory=list)

    @classmethod
    def of(cls, driver: Driver) -> _Stage:
        """Register the memory and fill the ranks' sources with random values."""
        stage, room = cls(driver), LARGEST + 64 * KIB
        shared = SharedMemory(3 * room)
        shared.touch()
        driver.must("cuMemHostRegister_v2", shared.address, 3 * room, PORTABLE)
        stage.result = shared.address + 2 * room
        stage.folded = _floats(stage.result, room)
        generator = np.random.default_rng(SEED)
        for number in range(2):
            address = shared.address + number * room
            values = generator.random(room // 4, np.float32) - np.float32(0.5)
            own = _floats(address, room)
            own[:] = values
            streams = (driver.stream(), driver.stream())
            events = [driver.event() for _ in range(2 * AHEAD)]
            rank = _Rank(driver, driver.allocate(room), driver.allocate(room), address, own, *streams, events)
            driver.must("cuMemcpyHtoD_v2", rank.source, address, room)
            stage.ranks.append(rank)
            stage.values.append(values)
        return stage

    def clear(self) -> None:
        """Poison the targets and the result."""
        for rank in self.ranks:
            self.driver.must("cuMemsetD8Async", rank.target, 0xFF, LARGEST + 64 * KIB, rank.up)
            self.driver.synchronize(rank.up)
        self.folded[:] = np.nan


Mode = Callable[[_Stage, int, int, int], list[float]]


def _tiles(count: int, tile: int) -> list[tuple[int, int]]:
    return [(first, min(tile, count - first)) for first in range(0, count, tile)]


def _copies_only(stage: _Stage, count: int, tile: int, repetitions: int) -> list[float]:
    return _one_rank(stage, count, tile, repetitions, fold=False)


def _one_rank(stage: _Stage, count: int, tile: int, repetitions: int, fold: bool = True) -> list[float]:
    """Rank 0 folds its tiles with rank 1's, which are in the host's memory already."""
    rank, peer, tiles, times = stage.ranks[0], stage.ranks[1].own, _tiles(count, tile), []
    for _ in range(repetitions):
        start, fetched = time.perf_counter(), 0
        for number, (first, length) in enumerate(tiles):
            while fetched < min(len(tiles), number + AHEAD):
                rank.fetch(fetched, *tiles[fetched])
                fetched += 1
            rank.await_tile(number)
            if fold:
                part = slice(first, first + length)
                np.add(rank.own[part], peer[part], out=stage.folded[part])
            rank.send(stage.result if fold else rank.host, first, length)
        stage.driver.synchronize(rank.up)
        times.append((time.perf_counter() - start) * 1e6)
    return times


def _two_ranks(stage: _Stage, count: int, tile: int, repetitions: int) -> list[float]:
    """Two threads; each folds half of every tile. Both share one link: twice the bytes each way."""
    tiles, spans = _tiles(count, tile), [list[tuple[float, float]](), list[tuple[float, float]]()]
    arrived, here, folded = [0, 0], [0, 0], [0, 0]
    failures: list[BaseException] = []

    def await_other(counters: list[int], number: int, least: int) -> None:
        counters[number] = least
        deadline = time.monotonic() + LIMIT_S
        while counters[1 - number] < least:
            if failures or time.monotonic() > deadline:
                raise CallError("the other rank does not come", -1)
            time.sleep(0)

    def repeat(number: int, rank: _Rank) -> None:
        step = 0
        for repetition in range(repetitions):
            await_other(arrived, number, repetition + 1)
            start, fetched = time.perf_counter(), 0
            for index, (first, length) in enumerate(tiles):
                while fetched < min(len(tiles), index + AHEAD):
                    rank.fetch(fetched, *tiles[fetched])
                    fetched += 1
                rank.await_tile(index)
                step += 1
                await_other(here, number, step)
                middle = first + length // 2
                part = slice(middle, first + length) if number else slice(first, middle)
                np.add(stage.ranks[0].own[part], stage.ranks[1].own[part], out=stage.folded[part])
                await_other(folded, number, step)
                rank.send(stage.result, first, length)
            stage.driver.synchronize(rank.up)
            spans[number].append((start, time.perf_counter()))

    def body(number: int) -> None:
        try:
            stage.driver.use()
            repeat(number, stage.ranks[number])
        except BaseException as error:  # passed on to the caller
            failures.append(error)

    threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    if failures:
        raise failures[0]
    return [(max(a[1], b[1]) - min(a[0], b[0])) * 1e6 for a, b in zip(*spans, strict=True)]


MODES: dict[str, Mode] = {"copies only": _copies_only, "one rank": _one_rank, "two ranks": _two_ranks}


def _pipelines(checks: CudaChecks) -> None:
    start = time.perf_counter()
    stage = _Stage.of(checks.library)
    ms = (time.perf_counter() - start) * 1000
    checks.figure("prepare the pipelines' memory", "cuMemHostRegister_v2", "768 MiB and random values", ms, "ms")
    odd = MIB // 4 + 3  # elements: the last tile has 3
    for count, tile in ((odd, 64 * KIB // 4), (odd, MIB // 4), (LARGEST // 4, 4 * MIB // 4)):
        for words, mode in MODES.items():
            _verify(checks, stage, words, mode, count, tile)
    for total, repetitions in TOTALS.items():
        for words, mode in MODES.items():
            for tile in (*(tile for tile in TILES if tile < total <= MOST_TILES * tile), total):
                name = f"{label(total)} in tiles of {label(tile)}, {words}"
                checks.recorder.begin(name, "")
                times = mode(stage, total // 4, tile // 4, repetitions + 1)[1:]
                note = f"{total / median(times) / 1e3:.2f} GB/s; {spread(times)}"
                checks.figure(name, f"{DOWN}, {UP}", words, median(times), "us", note)


def _verify(checks: CudaChecks, stage: _Stage, words: str, mode: Mode, count: int, tile: int) -> None:
    """Compare what the ranks then have with NumPy's sums, and the rest of the target with the poison."""
    stage.clear()
    stage.ranks[1].own[:] = stage.values[1]
    mode(stage, count, tile, 1)
    wanted = stage.values[0][:count] if mode is _copies_only else stage.values[0][:count] + stage.values[1][:count]
    for number, rank in enumerate(stage.ranks[: 2 if mode is _two_ranks else 1]):
        seen = np.frombuffer(stage.driver.download(rank.target, 4 * count + 64), np.uint32)
        wrong = int((seen[:count] != wanted.view(np.uint32)).sum())
        intact = bool((seen[count:] == 0xFFFFFFFF).all())
        what = "exact" if wrong == 0 and intact else f"{wrong} of {count} wrong, memory behind intact: {intact}"
        name = f"{words}: result of rank {number}, {label(4 * count)} in tiles of {label(4 * tile)}"
        checks.fact(name, f"{DOWN}, {UP}", f"{count} float32", what, "exact")
