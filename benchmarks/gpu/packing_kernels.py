"""PTX that copies many tensors into a flat buffer and back, and the table that tells it which.

The table has a 24-byte entry for each tensor: its address, the place of its first element in the flat buffer, and its
number of elements. The tensors are cut into parts of equal length; the list of parts has the tensor's index and the
part's index. A block takes every n-th part of the list, n being the number of blocks, so that any number of blocks
serves any table. Both are written to the device once; a launch has seven arguments however many tensors there are.

A part is copied in vectors whose larger side has 16 bytes, with single elements before the first and after the last
whole vector. Example: 11 float32 of which the first lies at address 8 and goes to address 24: 2 single elements bring
both sides to a multiple of 16, then follow 2 vectors of 4 and 1 single element. Where the sides do not come to whole
vectors together, as with addresses 8 and 20, all elements are copied singly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from ctypes import c_double, c_float, c_uint, c_uint64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.cuda import PTX_HEADER, Driver
from benchmarks.gpu.record import CallError

SIZES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
RAW = ("b8", "b16", "b32", "b64")
SCALED = ("f16", "bf16", "f32", "f64")
CASTS = (("f32", "f16"), ("f32", "bf16"), ("f16", "f32"), ("bf16", "f32"))
UNROLL = 4  # vectors that a thread loads before it stores the first one
UNROLLS = (1, 2, 8)  # other kernels of 32-bit elements, for comparison
PACK, UNPACK = 0, 1
ALIGNMENT = 16  # bytes
PRODUCT = Path(__file__).parents[2] / "cpp_core" / "cuda" / "packing.ptx"
# The launch that is at most 7 % slower than the fastest for every group of tensors that was measured on an H100, in
# either run: 4 blocks for each multiprocessor, and parts of 16 KiB of 32-bit elements, which a block copies without a
# loop. 2 blocks for each multiprocessor are at most 5 % slower.
BLOCKS, THREADS = 528, 256
PART = THREADS * UNROLL * 4  # elements


def kernel_name(source: str, target: str, unroll: int = UNROLL) -> str:
    """The entry that reads elements of one type and writes another; raw types are copied as they are."""
    suffix = "" if unroll == UNROLL else f"_by_{unroll}"
    return f"move_{source}_{target}{suffix}"


def kernels() -> list[tuple[str, str, int]]:
    """Source type, target type and unrolling of each kernel."""
    same = [(kind, kind, UNROLL) for kind in (*RAW, *SCALED)]
    return [*same, *((*pair, UNROLL) for pair in CASTS), *(("b32", "b32", unroll) for unroll in UNROLLS)]


def ptx() -> str:
    """The text of the module."""
    return PTX_HEADER + "\n".join(_Kernel(*kernel).text() for kernel in kernels())


def product_ptx() -> str:
    """The text of ``cpp_core/cuda/packing.ptx``: the kernels that the library uses."""
    head = "// Written by benchmarks/gpu/packing_kernels.py, which describes the kernels.\n"
    return head + PTX_HEADER + "\n".join(_Kernel(kind, kind, UNROLL).text() for kind in (*RAW, *SCALED))


class _Kernel:
    """Writes the text of one kernel."""

    def __init__(self, source: str, target: str, unroll: int) -> None:
        self.source = source
        self.target = target
        self.unroll = unroll
        self.name = kernel_name(source, target, unroll)
        self.source_size = SIZES[source]
        self.target_size = SIZES[target]
        self.vector = 16 // max(self.source_size, self.target_size)
        self._lines: list[str] = []
        self._temporaries = 0

    @property
    def raw(self) -> bool:
        return self.source in RAW

    def text(self) -> str:
        scale = "f64" if self.source == "f64" else "f32"
        last = "" if self.raw else f",\n  .param .{scale} scale"
        load = "" if self.raw else f"  ld.param.{scale} %scale, [scale];\n"
        register = "" if self.raw else f"  .reg .{scale} %scale;\n"
        body = _BODY.format(
            load_scale=load,
            source_size=self.source_size,
            target_size=self.target_size,
            source_mask=self.vector * self.source_size - 1,
            target_mask=self.vector * self.target_size - 1,
            vector=self.vector,
            head=self._loop("HEAD", 1, "%head"),
            vectors=self._loop("VECTORS", self.vector, "%whole"),
            tail=self._loop("TAIL", 1, "%rest"),
        )
        registers = _REGISTERS + register
        return f"\n.visible .entry {self.name}({_PARAMETERS}{last})\n.maxntid 1024, 1, 1\n{{\n{registers}{body}}}\n"

    def _loop(self, label: str, elements: int, count: str) -> str:
        """Text that copies ``count`` groups of elements from %from to %to: several at a time, then one at a time."""
        self._lines, several = [], range(self.unroll)
        self._add("mov.u32 %i, %thread", f"{label}_SEVERAL:")
        self._add(f"add.u32 %j, %i, %reach_{self.unroll - 1}", f"setp.ge.u32 %p, %j, {count}", f"@%p bra {label}_ONE")
        loaded = [self._load(self._index(number), elements) for number in several]
        for number, words in zip(several, loaded, strict=True):
            self._store(self._index(number), elements, words)
        self._add(f"add.u32 %i, %i, %reach_{self.unroll}", f"bra {label}_SEVERAL")
        self._add(f"{label}_ONE:", f"setp.ge.u32 %p, %i, {count}", f"@%p bra {label}_END")
        self._store("%i", elements, self._load("%i", elements))
        self._add("add.u32 %i, %i, %threads", f"bra {label}_ONE", f"{label}_END:")
        return "".join(self._lines)

    def _add(self, *statements: str) -> None:
        """Append statements, and labels, which end with a colon."""
        for statement in statements:
            self._lines.append(f"{statement}\n" if statement.endswith(":") else f"  {statement};\n")

    def _new(self, kind: str) -> str:
        """Declare a register."""
        self._temporaries += 1
        name = f"%t{self._temporaries}"
        self._add(f".reg .{kind} {name}")
        return name

    def _index(self, number: int) -> str:
        """The register with the index of the thread's n-th group."""
        if number == 0:
            return "%i"
        self._add(f"add.u32 %j, %i, %reach_{number}")
        return "%j"

    def _load(self, index: str, elements: int) -> list[str]:
        """Load a group of elements; the result is the list of registers with the source's bits."""
        size = elements * self.source_size
        words = [self._new("b16" if size < 4 else "b32") for _ in range(max(1, size // 4))]
        self._add(f"mul.wide.u32 %at, {index}, {size}", "add.u64 %at, %from, %at")
        self._add(f"ld.global{_vector(words, size)} {_braces(words)}, [%at]")
        return words

    def _store(self, index: str, elements: int, words: list[str]) -> None:
        size = elements * self.target_size
        if not self.raw:
            words = self._bits(self._values(words, elements))
        self._add(f"mul.wide.u32 %at, {index}, {size}", "add.u64 %at, %to, %at")
        self._add(f"st.global{_vector(words, size)} [%at], {_braces(words)}")

    def _values(self, words: list[str], elements: int) -> list[str]:
        """The loaded bits as scaled values: float64 of float64, float32 of all other types."""
        wide = "f64" if self.source == "f64" else "f32"
        values = [self._new(wide) for _ in range(elements)]
        for element, value in enumerate(values):
            if self.source == "f64":
                self._add(f"mov.b64 {value}, {_braces(words[2 * element : 2 * element + 2])}")
            elif self.source == "f32":
                self._add(f"mov.b32 {value}, {words[element]}")
            else:
                half = words[0]
                if elements > 1:
                    half = "%high" if element % 2 else "%low"
                    self._add(f"mov.b32 {{%low, %high}}, {words[element // 2]}")
                widen = (
                    f"cvt.f32.f16 {value}, {half}" if self.source == "f16" else f"mov.b32 {value}, {{%zero, {half}}}"
                )
                self._add(widen)
            self._add(f"mul.rn.{wide} {value}, {value}, %scale")
        return values

    def _bits(self, values: list[str]) -> list[str]:
        """Values as the bits to store."""
        if self.target_size > 2:
            words = [self._new("b32") for _ in range(len(values) * self.target_size // 4)]
            each = len(words) // len(values)
            for number, value in enumerate(values):
                self._add(f"mov.b{32 * each} {_braces(words[each * number : each * (number + 1)])}, {value}")
            return words
        halves = [self._new("b16") for _ in values]
        for half, value in zip(halves, values, strict=True):
            self._add(*([f"cvt.rn.f16.f32 {half}, {value}"] if self.target == "f16" else _rounding(half, value)))
        if len(values) == 1:
            return halves
        words = [self._new("b32") for _ in range(len(values) // 2)]
        for number, word in enumerate(words):
            self._add(f"mov.b32 {word}, {_braces(halves[2 * number : 2 * number + 2])}")
        return words


def _rounding(half: str, value: str) -> list[str]:
    """A float32 rounded to the nearest bfloat16, ties to even; sm_70 has no instruction for it."""
    return [
        f"mov.b32 %bits, {value}",
        "shr.u32 %odd, %bits, 16",
        "and.b32 %odd, %odd, 1",
        "add.u32 %rounded, %bits, 0x7fff",
        "add.u32 %rounded, %rounded, %odd",
        "or.b32 %nan, %bits, 0x400000",
        f"setp.nan.f32 %q, {value}, {value}",
        "selp.b32 %rounded, %nan, %rounded, %q",
        f"mov.b32 {{%low, {half}}}, %rounded",
    ]


def _vector(words: list[str], size: int) -> str:
    if size < 4:
        return ".u8" if size == 1 else ".b16"
    return ".b32" if len(words) == 1 else f".v{len(words)}.b32"


def _braces(words: list[str]) -> str:
    return words[0] if len(words) == 1 else "{" + ", ".join(words) + "}"


_PARAMETERS = """
  .param .u64 table,
  .param .u64 parts,
  .param .u32 number_of_parts,
  .param .u32 part_length,
  .param .u64 flat,
  .param .u32 direction"""

_REGISTERS = """  .reg .pred %p, %q;
  .reg .b16 %low, %high, %zero;
  .reg .b32 %bits, %odd, %rounded, %nan;
  .reg .u32 %i, %j, %thread, %threads, %block, %blocks, %count, %tensor, %part, %length, %way;
  .reg .u32 %left, %head, %other, %whole, %rest, %done;
  .reg .u32 %reach_0, %reach_1, %reach_2, %reach_3, %reach_4, %reach_5, %reach_6, %reach_7, %reach_8;
  .reg .u64 %table, %parts, %flat, %at, %entry, %pointer, %place, %size, %first, %wide, %source, %target, %from, %to;
"""

_BODY = """  mov.u32 %thread, %tid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.b16 %zero, 0;
  mov.u32 %reach_0, 0;
  mov.u32 %reach_1, %threads;
  shl.b32 %reach_2, %threads, 1;
  add.u32 %reach_3, %reach_2, %threads;
  shl.b32 %reach_4, %threads, 2;
  add.u32 %reach_5, %reach_4, %threads;
  add.u32 %reach_6, %reach_4, %reach_2;
  add.u32 %reach_7, %reach_4, %reach_3;
  shl.b32 %reach_8, %threads, 3;
  ld.param.u64 %table, [table];
  ld.param.u64 %parts, [parts];
  ld.param.u32 %count, [number_of_parts];
  ld.param.u32 %length, [part_length];
  ld.param.u64 %flat, [flat];
  ld.param.u32 %way, [direction];
{load_scale}NEXT_PART:
  setp.ge.u32 %p, %block, %count;
  @%p bra FINISHED;
  mul.wide.u32 %at, %block, 8;
  add.u64 %at, %parts, %at;
  ld.global.v2.u32 {{%tensor, %part}}, [%at];
  mul.wide.u32 %entry, %tensor, 24;
  add.u64 %entry, %table, %entry;
  ld.global.u64 %pointer, [%entry];
  ld.global.u64 %place, [%entry+8];
  ld.global.u64 %size, [%entry+16];
  mul.wide.u32 %first, %part, %length;
  sub.u64 %size, %size, %first;
  cvt.u64.u32 %wide, %length;
  min.u64 %size, %size, %wide;
  cvt.u32.u64 %left, %size;
  // The tensor is the source or the target.
  setp.eq.u32 %q, %way, 0;
  mad.lo.u64 %source, %place, {source_size}, %flat;
  mad.lo.u64 %target, %place, {target_size}, %flat;
  selp.b64 %source, %pointer, %source, %q;
  selp.b64 %target, %target, %pointer, %q;
  mad.lo.u64 %source, %first, {source_size}, %source;
  mad.lo.u64 %target, %first, {target_size}, %target;
  // The elements up to the first whole vector of each side.
  neg.s64 %wide, %source;
  and.b64 %wide, %wide, {source_mask};
  cvt.u32.u64 %head, %wide;
  div.u32 %head, %head, {source_size};
  neg.s64 %wide, %target;
  and.b64 %wide, %wide, {target_mask};
  cvt.u32.u64 %other, %wide;
  div.u32 %other, %other, {target_size};
  setp.ne.u32 %p, %head, %other;
  selp.b32 %head, %left, %head, %p;
  min.u32 %head, %head, %left;
  sub.u32 %rest, %left, %head;
  div.u32 %whole, %rest, {vector};
  mul.lo.u32 %done, %whole, {vector};
  sub.u32 %rest, %rest, %done;
  mov.u64 %from, %source;
  mov.u64 %to, %target;
{head}  mul.wide.u32 %at, %head, {source_size};
  add.u64 %from, %source, %at;
  mul.wide.u32 %at, %head, {target_size};
  add.u64 %to, %target, %at;
{vectors}  mul.wide.u32 %at, %done, {source_size};
  add.u64 %from, %from, %at;
  mul.wide.u32 %at, %done, {target_size};
  add.u64 %to, %to, %at;
{tail}  add.u32 %block, %block, %blocks;
  bra NEXT_PART;
FINISHED:
  ret;
"""


@dataclass
class Table:
    """A table and a list of parts on the device, for one group of tensors."""

    table: int
    parts: int
    number_of_parts: int
    part_length: int  # elements; a multiple of 16, so that all parts of a tensor are aligned alike


class Packer:
    """The module's kernels, and tables for them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        module = driver.module(ptx())
        self._functions = {kernel_name(*kernel): driver.function(module, kernel_name(*kernel)) for kernel in kernels()}

    def table(self, tensors: list[tuple[int, int, int]], part_length: int = PART) -> Table:
        """Write the table of tensors; each has an address, a place in the flat buffer and a number of elements."""
        if part_length % 16:
            raise ValueError(f"parts of {part_length} elements: not a multiple of 16")
        entries = b"".join(struct.pack("<QQQ", *tensor) for tensor in tensors)
        parts = [
            struct.pack("<II", index, part)
            for index, (_, _, count) in enumerate(tensors)
            for part in range(-(-count // part_length))
        ]
        table, places = self._driver.allocate(max(1, len(entries))), self._driver.allocate(8 * max(1, len(parts)))
        self._driver.upload(table, entries)
        self._driver.upload(places, b"".join(parts))
        return Table(table, places, len(parts), part_length)

    def launch(
        self,
        table: Table,
        flat: int,
        stream: int,
        kind: str | tuple[str, str],
        direction: int = PACK,
        scale: float = 1.0,
        blocks: int = BLOCKS,
        threads: int = THREADS,
        unroll: int = UNROLL,
    ) -> Callable[[], None]:
        """A function that launches a kernel; its arguments are prepared, so that a call costs a call.

        Args:
            table: the tensors.
            flat: address of the flat buffer.
            stream: where to launch.
            kind: type of the elements, or types of the source's and the target's.
            direction: ``PACK`` or ``UNPACK``.
            scale: factor; a raw type has none.
            blocks: number of blocks.
            threads: threads of a block.
            unroll: which of the kernels with several unrollings.
        """
        source, target = (kind, kind) if isinstance(kind, str) else kind
        values: list[Any] = [c_uint64(table.table), c_uint64(table.parts)]
        values += [c_uint(table.number_of_parts), c_uint(table.part_length), c_uint64(flat), c_uint(direction)]
        if source not in RAW:
            values.append((c_double if source == "f64" else c_float)(scale))
        driver, pointers = self._driver, self._driver.launch_arguments(*values)
        arguments = (
            *(self._functions[kernel_name(source, target, unroll)], blocks, 1, 1, threads, 1, 1, 0, stream),
            *(pointers, None),
        )
        function = driver.cuLaunchKernel

        def call(keep: object = values) -> None:
            del keep  # the values that the pointers point to
            code = function(*arguments)
            if code != 0:
                raise CallError(f"cuLaunchKernel: {driver.code_name(code)}", code)

        return call


if __name__ == "__main__":
    PRODUCT.write_text(product_ptx(), encoding="utf-8")
