"""Calibration of kernels that copy many tensors into a flat buffer and back: results, and time beside plain copies."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.architectures import load
from benchmarks.gpu.cuda import CopyAttributes, Driver
from benchmarks.gpu.packing_kernels import (
    ALIGNMENT,
    BLOCKS,
    CASTS,
    PACK,
    PART,
    RAW,
    SCALED,
    SIZES,
    THREADS,
    UNPACK,
    UNROLL,
    UNROLLS,
    Packer,
    Table,
)
from benchmarks.gpu.session import CudaChecks, Session
from benchmarks.gpu.timing import KIB, MIB, Clock, Times, figure, label

Array = npt.NDArray[Any]
COUNTS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 127, 255, 1000, 1023, 4097, 20011)
LAUNCHES = ((3, 64, 1024), (BLOCKS, THREADS, PART))  # blocks, threads and elements of a part
POISON, SEED = 0xA5, 20261127
LAYOUTS = ("aligned", "alike", "dense")
DEFAULT = f"{BLOCKS} blocks of {THREADS}, parts of {PART}"
# Blocks, threads and elements of a part, so that all blocks together have as many threads.
SHAPES = ((528, 256, 4096), (528, 256, 8192), (264, 512, 8192), (264, 512, 16384), (132, 1024, 16384))
CALL = "cuLaunchKernel"


def packing(session: Session) -> None:
    """Results of every kernel in both directions; time of packing ResNet-50's gradients and equal tensors."""
    checks = session.cuda()
    start = time.perf_counter()
    packer = Packer(checks.library)
    checks.figure("load the packing module", "cuModuleLoadData", "PTX", (time.perf_counter() - start) * 1000, "ms")
    session.run((_raw, _scaled, _casts, _in_place, _resnet, _resnet_shapes, _equal), checks, packer)


# ---- results


def _raw(checks: CudaChecks, packer: Packer) -> None:
    """Copies: float32 and int32 are 32-bit elements, and so on."""
    for kind in RAW:
        _check(checks, packer, kind, kind, 1.0)
    for unroll in UNROLLS:
        _check(checks, packer, "b32", "b32", 1.0, unroll)


def _scaled(checks: CudaChecks, packer: Packer) -> None:
    for kind, scale in itertools.product(SCALED, (0.125, 1 / 3)):
        _check(checks, packer, kind, kind, scale)


def _casts(checks: CudaChecks, packer: Packer) -> None:
    for (source, target), scale in itertools.product(CASTS, (1.0, 1 / 3)):
        _check(checks, packer, source, target, scale)


@dataclass
class _Group:
    """Tensors in one piece of memory, and their places in the flat buffer; all in elements."""

    starts: list[int]
    places: list[int]

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        return list(zip(self.starts, self.places, COUNTS, strict=True))

    @classmethod
    def of(cls, layout: str) -> _Group:
        """Starts and places that are multiples of 16 elements; or neither, but alike; or places without gaps."""
        starts, places, start, place = list[int](), list[int](), 16, 16
        for index, count in enumerate(COUNTS):
            skip = 0 if layout == "aligned" else index % 11
            start = -(-start // 16) * 16 + skip
            if layout != "dense":
                place = -(-place // 16) * 16 + skip
            starts.append(start)
            places.append(place)
            start, place = start + count + 3, place + count
        return cls(starts, places)

    @property
    def size(self) -> int:
        """Elements of either piece of memory, with room at the end."""
        return max(self.starts[-1], self.places[-1]) + COUNTS[-1] + 64


def _check(checks: CudaChecks, packer: Packer, source: str, target: str, scale: float, unroll: int = UNROLL) -> None:
    """Compare all of the output with NumPy's, including the poison between the tensors."""
    cases = itertools.product(LAYOUTS, (PACK, UNPACK), LAUNCHES)
    wrong, total = list[str](), 0
    for (layout, direction, launch), seed in zip(cases, itertools.count(SEED)):
        error = compare(checks.library, packer, (source, target), scale, layout, direction, launch, unroll, seed)
        total += 1
        if error:
            way = "pack" if direction == PACK else "unpack"
            wrong.append(f"{layout}, {way}, blocks, threads, part {launch}, seed {seed}: {error}")
    seen = "exact" if not wrong else f"wrong in {len(wrong)} of {total} cases"
    times = "" if source in RAW else f" times {scale:.4g}"
    name = f"{source} to {target}{times}" + ("" if unroll == UNROLL else f", by {unroll}")
    words = f"{len(COUNTS)} tensors, {total} cases"
    checks.fact(f"packing of {name}", CALL, words, seen, "exact", note=wrong[0] if wrong else "")


def compare(
    driver: Driver,
    packer: Packer,
    kinds: tuple[str, str],
    scale: float,
    layout: str,
    direction: int,
    launch: tuple[int, int, int],
    unroll: int,
    seed: int,
) -> str:
    """Run one case; a text if a byte is wrong."""
    source, target = kinds
    group, (blocks, threads, part) = _Group.of(layout), launch
    values = random_elements(source, group.size, seed)
    wanted = np.full(group.size * SIZES[target], POISON, np.uint8).view(_bits(target))
    for start, place, count in group.ranges:
        first, second = (start, place) if direction == PACK else (place, start)
        wanted[second : second + count] = converted(values[first : first + count], source, target, scale)
    where, flat = driver.allocate(values.nbytes), driver.allocate(wanted.nbytes)
    driver.upload(where, values.tobytes())
    driver.upload(flat, bytes([POISON]) * wanted.nbytes)
    tensors, other = (where, flat) if direction == PACK else (flat, where)
    size = SIZES[source if direction == PACK else target]
    table = packer.table([(tensors + start * size, place, count) for start, place, count in group.ranges], part)
    stream = driver.stream()
    packer.launch(table, other, stream, kinds, direction, scale, blocks, threads, unroll)()
    driver.synchronize(stream)
    seen = np.frombuffer(driver.download(flat, wanted.nbytes), wanted.dtype)
    for memory in (where, flat, table.table, table.parts):
        driver.must("cuMemFree_v2", memory)
    driver.must("cuStreamDestroy_v2", stream)
    return _difference(seen, wanted, target)


def _difference(seen: Array, wanted: Array, kind: str) -> str:
    """A text for the first element that differs; NaN is equal to NaN."""
    different = seen != wanted
    if kind not in RAW:
        different &= ~(np.isnan(widened(seen, kind)) & np.isnan(widened(wanted, kind)))
    if not different.any():
        return ""
    index = int(np.argmax(different))
    return f"{int(different.sum())} elements, first {index}: {int(seen[index]):#x}, not {int(wanted[index]):#x}"


def _bits(kind: str) -> Any:
    return np.dtype(f"u{SIZES[kind]}")


def random_elements(kind: str, count: int, seed: int) -> Array:
    """Bits of elements: random bits, and of floating-point types every other one a random normal value.

    Of float32, some lie in the middle between two values of bfloat16, or of float16.
    """
    generator = np.random.default_rng(seed)
    bits: Array = np.frombuffer(generator.bytes(count * SIZES[kind]), _bits(kind)).copy()
    if kind not in RAW:
        bits[::2] = narrowed(generator.standard_normal(count).astype(np.float32), kind)[::2]
    if kind == "f32":
        bits[::5] = bits[::5] >> 16 << 16 | 0x8000
        bits[1::5] = bits[1::5] >> 13 << 13 | 0x1000
    return bits


def widened(bits: Array, kind: str) -> Array:
    """Elements as float64 if they are that, else as float32."""
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    values: Array = bits.view({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind])
    return values if kind == "f64" else values.astype(np.float32)


def narrowed(values: Array, kind: str) -> Array:
    """Bits of values, rounded to the nearest, ties to even."""
    if kind == "bf16":
        bits = values.view(np.uint32)
        rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)
    with np.errstate(all="ignore"):
        return values.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]).view(_bits(kind))


def converted(bits: Array, source: str, target: str, scale: float) -> Array:
    """NumPy's result of a kernel."""
    if source in RAW:
        return bits
    values = widened(bits, source)
    with np.errstate(all="ignore"):
        return narrowed(values * values.dtype.type(scale), target)


def _in_place(checks: CudaChecks, packer: Packer) -> None:
    """A flat buffer is scaled in place: it is the only tensor of its table."""
    driver, stream, count = checks.library, checks.library.stream(), 100_003
    values = random_elements("f32", count, SEED)
    memory = driver.allocate(values.nbytes)
    driver.upload(memory, values.tobytes())
    packer.launch(packer.table([(memory, 0, count)]), memory, stream, "f32", PACK, 0.5)()
    driver.synchronize(stream)
    seen = np.frombuffer(driver.download(memory, values.nbytes), np.uint32)
    error = _difference(seen, converted(values, "f32", "f32", 0.5), "f32")
    checks.fact("scaling in place", CALL, f"{count} float32", error or "exact", "exact")


# ---- figures


class _Tensors:
    """32-bit tensors that lie as a framework's allocator places them, and a flat buffer with aligned slots."""

    def __init__(self, checks: CudaChecks, packer: Packer, counts: list[int], words: str) -> None:
        self.checks = checks
        self.packer = packer
        self.counts = counts
        self.words = words
        self.driver = checks.library
        self.stream = self.driver.stream()
        self.clock = Clock(self.driver, self.stream)
        self.size = 4 * sum(counts)
        starts, places, start, place = list[int](), list[int](), 0, 0
        for count in counts:
            starts.append(start)
            places.append(place)
            start = -(-(start + 4 * count) // 512) * 512
            place = -(-(place + count) // (ALIGNMENT // 4)) * (ALIGNMENT // 4)
        self.places = places
        self.span, self.flat_size = start, 4 * place
        self.memory, self.flat = self.driver.allocate(self.span), self.driver.allocate(self.flat_size + 64)
        self.addresses = [self.memory + start for start in starts]
        self.data = np.random.default_rng(SEED).standard_normal(self.span // 4).astype(np.float32)
        self.driver.upload(self.memory, self.data.tobytes())
        self.floor_us = 1.0

    def table(self, part: int = PART) -> Table:
        return self.packer.table(list(zip(self.addresses, self.places, self.counts, strict=True)), part)

    def verify(self, table: Table) -> None:
        """Pack, clear the tensors, unpack: nothing is lost."""
        driver, poison = self.driver, bytes([POISON])
        driver.upload(self.flat, poison * self.flat_size)
        self.packer.launch(table, self.flat, self.stream, "b32", PACK)()
        driver.synchronize(self.stream)
        flat = np.frombuffer(driver.download(self.flat, self.flat_size), np.float32)
        offsets = [(address - self.memory) // 4 for address in self.addresses]
        ranges = list(zip(offsets, self.places, self.counts, strict=True))
        packed = all(
            np.array_equal(flat[place : place + count], self.data[offset : offset + count])
            for offset, place, count in ranges
        )
        self.checks.fact(f"{self.words}: packed", CALL, "", packed, "True")
        driver.upload(self.memory, poison * self.span)
        self.packer.launch(table, self.flat, self.stream, "b32", UNPACK)()
        driver.synchronize(self.stream)
        memory = np.frombuffer(driver.download(self.memory, self.span), np.float32)
        unpacked = all(
            np.array_equal(memory[offset : offset + count], self.data[offset : offset + count])
            for offset, _, count in ranges
        )
        self.checks.fact(f"{self.words}: unpacked", CALL, "", unpacked, "True")

    def row(self, name: str, call: str, times: Times, moved: float = 1.0) -> None:
        """A row: time, bytes copied in a second, share of the plain copy's speed.

        Args:
            name: what is measured.
            call: the function.
            times: of the repetitions.
            moved: bytes read and written, as a share of a plain copy's; a cast from 4 to 2 bytes moves three quarters.
        """
        rate, share = moved * self.size / times.us / 1e3, moved * self.floor_us / times.us
        note = f"{rate:.0f} GB/s; {share:.0%} of one plain copy's speed; {times.note()}"
        self.checks.figure(f"{self.words}: {name}", call, self.words, times.us, "us", note)

    def measure_floor(self) -> Times:
        """The time of one plain copy of as many bytes."""
        size = 4 * (self.places[-1] + self.counts[-1])
        arguments = (self.flat, self.memory, size, self.stream)
        times = self.clock.measure(lambda: self.driver.cuMemcpyDtoDAsync_v2(*arguments))
        self.floor_us = times.us
        return times

    def plain_copies(self) -> None:
        """The floor, a copy for each tensor, and the batch of copies."""
        driver = self.driver
        self.row("one plain copy", "cuMemcpyDtoDAsync_v2", self.measure_floor())
        targets = [self.flat + 4 * place for place in self.places]
        copies = list(zip(targets, self.addresses, (4 * count for count in self.counts), strict=True))

        def each() -> None:
            for target, source, count in copies:
                driver.cuMemcpyDtoDAsync_v2(target, source, count, self.stream)

        many = f"{len(copies)} plain copies"
        self.row(many, "cuMemcpyDtoDAsync_v2", self.clock.measure(each, 10, hold_ms=4))
        wall = self.clock.wall(each, 10)
        figure(self.checks, f"{self.words}: {many}, to completion", "cuMemcpyDtoDAsync_v2", self.words, wall)
        if driver.find("cuMemcpyBatchAsync_v2") is not None:
            batch = self._batch(copies)
            self.row("a batch of copies", "cuMemcpyBatchAsync_v2", self.clock.measure(batch, 10, hold_ms=4))
            wall = self.clock.wall(batch, 10)
            name = f"{self.words}: a batch of copies, to completion"
            figure(self.checks, name, "cuMemcpyBatchAsync_v2", self.words, wall)

    def _batch(self, copies: list[tuple[int, int, int]]) -> Callable[[], None]:
        targets, sources = ((c_uint64 * len(copies))(*(copy[side] for copy in copies)) for side in (0, 1))
        sizes = (c_size_t * len(copies))(*(copy[2] for copy in copies))
        attributes, first = CopyAttributes(srcAccessOrder=1), c_size_t(0)
        arguments = (targets, sources, sizes, len(copies), byref(attributes), byref(first), 1, self.stream)

        def call(keep: object = (attributes, first)) -> None:
            del keep  # the arguments point to it
            self.driver.must("cuMemcpyBatchAsync_v2", *arguments)

        return call

    def sweep(
        self, blocks: tuple[int, ...], threads: tuple[int, ...], parts: tuple[int, ...], repetitions: int
    ) -> None:
        """Packing with every shape of the launch; a row for each, and the best."""
        best, best_us = "", math.inf
        for part in parts:
            table = self.table(part)
            for number, width in itertools.product(blocks, threads):
                call = self.packer.launch(table, self.flat, self.stream, "b32", blocks=number, threads=width)
                times = self.clock.measure(call, repetitions)
                words = f"{number} blocks of {width}, parts of {part}"
                self.row(f"pack with {words}", CALL, times)
                if times.us < best_us:
                    best, best_us = words, times.us
        note = f"{best_us:.1f} us; {self.floor_us / best_us:.0%} of one plain copy's speed"
        self.checks.fact(f"{self.words}: best shape of the launch", CALL, "", best, note=note)


def _resnet_tensors(checks: CudaChecks, packer: Packer) -> _Tensors:
    counts = [math.prod(shape) for _, shape in load("ResNet-50")]
    return _Tensors(checks, packer, counts, "ResNet-50's gradients")


def _resnet(checks: CudaChecks, packer: Packer) -> None:
    tensors = _resnet_tensors(checks, packer)
    table = tensors.table()
    tensors.verify(table)
    tensors.plain_copies()
    plain = tensors.packer.launch(table, tensors.flat, tensors.stream, "b32")
    wall = tensors.clock.wall(plain)
    checks.fact("parts of the table", CALL, tensors.words, table.number_of_parts)
    figure(checks, f"{tensors.words}: pack, to completion", CALL, tensors.words, wall)
    kinds: tuple[tuple[str, str | tuple[str, str], int, int], ...] = (
        ("pack", "b32", PACK, 0),
        ("unpack", "b32", UNPACK, 0),
        ("pack and scale", "f32", PACK, 0),
        ("unpack and scale", "f32", UNPACK, 0),
        ("pack to float16", ("f32", "f16"), PACK, 0),
        ("pack to bfloat16", ("f32", "bf16"), PACK, 0),
        ("unpack from bfloat16", ("bf16", "f32"), UNPACK, 0),
        ("pack with slots 4 bytes off alignment", "b32", PACK, 4),
        ("unpack with slots 4 bytes off alignment", "b32", UNPACK, 4),
    )
    for words, kind, direction, offset in kinds:
        scale = 1.0 if words.startswith("un") else 0.125
        flat = tensors.flat + offset
        call = packer.launch(table, flat, tensors.stream, kind, direction, scale)
        moved = 1.0 if isinstance(kind, str) else (SIZES[kind[0]] + SIZES[kind[1]]) / 8
        tensors.row(f"{words}, {DEFAULT}", CALL, tensors.clock.measure(call), moved)
    for unroll, (blocks, threads, part) in itertools.product((*UNROLLS, UNROLL), SHAPES):
        shape = (blocks, threads, unroll)
        call = packer.launch(tensors.table(part), tensors.flat, tensors.stream, "b32", PACK, 1.0, *shape)
        name = f"pack, {unroll} vectors at a time, {blocks} blocks of {threads}, parts of {part}"
        tensors.row(name, CALL, tensors.clock.measure(call))


def _resnet_shapes(checks: CudaChecks, packer: Packer) -> None:
    tensors = _resnet_tensors(checks, packer)
    tensors.measure_floor()
    tensors.sweep((8, 16, 32, 66, 132, 264, 528, 1056), (256, 512, 1024), (4096, 8192, 16384), 12)


def _equal(checks: CudaChecks, packer: Packer) -> None:
    """64 tensors of one size; up to 16 MiB together they stay in the L2 cache."""
    for size in (4 * KIB, 64 * KIB, MIB):
        tensors = _Tensors(checks, packer, [size // 4] * 64, f"64 tensors of {label(size)}")
        tensors.verify(tensors.table())
        tensors.plain_copies()
        wall = tensors.clock.wall(packer.launch(tensors.table(), tensors.flat, tensors.stream, "b32"))
        figure(checks, f"{tensors.words}: pack, to completion", CALL, DEFAULT, wall)
        tensors.sweep((32, 66, 132, 264, 528), (256, 512, 1024), (1024, 4096, 8192, 16384), 12)
