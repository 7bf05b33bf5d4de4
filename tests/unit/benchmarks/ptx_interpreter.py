"""Runs the PTX of the calibration without a GPU, thread by thread; supports only the instructions of its kernels.

Loads and stores check alignment and bounds, so that a kernel that would fault fails here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

BITS = {"u8": 8, "b16": 16, "b32": 32, "u32": 32, "f32": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64}
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


@dataclass
class Kernel:
    """An entry: names and types of its parameters, instructions, positions of its labels, types of its registers."""

    parameters: list[tuple[str, str]]
    code: list[tuple[str | None, list[str], list[str]]]
    labels: dict[str, int]
    types: dict[str, str]


def parse(text: str) -> dict[str, Kernel]:
    """The entries of a module, by name."""
    entries = re.finditer(r"\.visible \.entry (\w+)\((.*?)\)\n\.maxntid[^\n]*\n\{\n(.*?)\n\}\n", text, re.DOTALL)
    return {entry[1]: _kernel(entry[2], entry[3]) for entry in entries}


def _kernel(parameters: str, body: str) -> Kernel:
    kernel = Kernel([(name, kind) for kind, name in re.findall(r"\.param \.(\w+) (\w+)", parameters)], [], {}, {})
    for line in body.splitlines():
        statement = line.split("//")[0].strip().rstrip(";")
        if statement.endswith(":"):
            kernel.labels[statement[:-1]] = len(kernel.code)
        elif statement.startswith(".reg"):
            kind, names = re.fullmatch(r"\.reg \.(\w+) (.*)", statement).groups()
            kernel.types |= {name.strip(): kind for name in names.split(",")}
        elif statement:
            predicate, rest = re.fullmatch(r"(?:@(%\w+) )?(.*)", statement).groups()
            operation, *operands = rest.split(None, 1)
            kernel.code.append((predicate, operation.split("."), OPERAND.findall(operands[0]) if operands else []))
    return kernel


class Memory:
    """Device memory: pieces at made-up addresses with gaps between them."""

    def __init__(self) -> None:
        self.pieces: dict[int, bytearray] = {}
        self.stored = 0  # bytes that threads wrote
        self._next = 0x7F0000000000

    def allocate(self, size: int) -> int:
        address, self._next = self._next, self._next + -(-size // 256) * 256 + 256
        self.pieces[address] = bytearray(size)
        return address

    def find(self, address: int, size: int) -> tuple[bytearray, int]:
        for start, piece in self.pieces.items():
            if start <= address and address + size <= start + len(piece):
                return piece, address - start
        raise AssertionError(f"{size} bytes at {address:#x} are outside the allocated memory")


class Thread:
    """One thread's registers."""

    def __init__(self, kernel: Kernel, memory: Memory, values: dict[str, int], special: dict[str, int]) -> None:
        self._kernel = kernel
        self._memory = memory
        self._values = values
        self._registers = dict(special)

    def run(self) -> None:
        position = 0
        while True:
            predicate, operation, operands = self._kernel.code[position]
            position += 1
            if predicate is not None and not self._registers[predicate]:
                continue
            if operation[0] == "ret":
                return
            if operation[0] == "bra":
                position = self._kernel.labels[operands[0]]
            elif operation[0] in ("ld", "st"):
                self._access(operation, operands)
            elif operation[0] == "mov":
                self._move(BITS[operation[-1]], *operands)
            else:
                target, *sources = operands
                self._registers[target] = self._compute(operation, [self._get(source) for source in sources])

    def _get(self, operand: str) -> int:
        return self._registers[operand] if operand in self._registers else int(operand, 0)

    def _move(self, bits: int, target: str, source: str) -> None:
        names = [name.strip() for name in source.strip("{}").split(",")]
        width = bits // len(names)
        value = sum(self._get(name) << (width * index) for index, name in enumerate(names))
        targets = [name.strip() for name in target.strip("{}").split(",")]
        width = bits // len(targets)
        for index, name in enumerate(targets):
            self._registers[name] = value >> (width * index) & ((1 << width) - 1)

    def _access(self, operation: list[str], operands: list[str]) -> None:
        place, names = (operands[1], operands[0]) if operation[0] == "ld" else operands
        if operation[1] == "param":
            self._registers[names] = self._values[place[1:-1]]
            return
        base, offset = re.fullmatch(r"\[(%\w+)(?:\+(\d+))?\]", place).groups()
        registers = [name.strip() for name in names.strip("{}").split(",")]
        size = BITS[operation[-1]] // 8
        vector = int(operation[2][1:]) if operation[2].startswith("v") else 1
        assert vector == len(registers), operation
        address = self._registers[base] + int(offset or 0)
        assert address % (size * vector) == 0, f"misaligned {'.'.join(operation)} at {address:#x}"
        piece, start = self._memory.find(address, size * vector)
        for index, name in enumerate(registers):
            assert BITS[self._kernel.types[name]] == max(16, 8 * size), (operation, name)
            part = slice(start + index * size, start + (index + 1) * size)
            if operation[0] == "ld":
                self._registers[name] = int.from_bytes(piece[part], "little")
            else:
                self._memory.stored += size
                piece[part] = (self._registers[name] & ((1 << (8 * size)) - 1)).to_bytes(size, "little")

    def _compute(self, operation: list[str], values: list[int]) -> int:
        name, kind = operation[0], operation[-1]
        if name == "cvt":
            return _converted(operation, values[0])
        if name == "setp":
            return _compared(operation[1], values)
        if name == "mul" and operation[1] == "rn":
            return _multiplied(kind, values)
        if name == "selp":
            return values[0] if values[2] else values[1]
        results = {
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "mul": lambda a, b: a * b,
            "mad": lambda a, b, c: a * b + c,
            "shl": lambda a, b: a << b,
            "shr": lambda a, b: a >> b,
            "and": lambda a, b: a & b,
            "or": lambda a, b: a | b,
            "neg": lambda a: -a,
            "div": lambda a, b: a // b,
            "min": min,
        }
        bits = 64 if operation[1] == "wide" else BITS[kind]
        return int(results[name](*values)) & ((1 << bits) - 1)


def _float(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def _compared(how: str, values: list[int]) -> int:
    first, second = values
    return int({"ge": first >= second, "eq": first == second, "ne": first != second, "nan": False}[how]) or int(
        how == "nan" and bool(np.isnan(_float(first)))
    )


def _multiplied(kind: str, values: list[int]) -> int:
    bits, floating = (np.uint32, np.float32) if kind == "f32" else (np.uint64, np.float64)
    first, second = (bits(value).view(floating) for value in values)
    with np.errstate(all="ignore"):
        return int((first * second).view(bits))


def _converted(operation: list[str], value: int) -> int:
    target, source = operation[-2:]
    if (target, source) == ("f32", "f16"):
        return int(np.uint16(value).view(np.float16).astype(np.float32).view(np.uint32))
    if (target, source) == ("f16", "f32"):
        assert operation[1] == "rn"
        with np.errstate(all="ignore"):
            return int(_float(value).astype(np.float16).view(np.uint16))
    return value & ((1 << BITS[target]) - 1)


class Interpreter:
    """A fake CUDA driver with memory and launches only."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._kernels: dict[str, Kernel] = {}
        self.launches = 0

    @property
    def stored(self) -> int:
        return self._memory.stored

    def module(self, text: str) -> int:
        self._kernels = parse(text)
        return 1

    def function(self, module: int, name: str) -> str:
        assert module == 1 and name in self._kernels, name
        return name

    def allocate(self, size: int) -> int:
        return self._memory.allocate(size)

    def upload(self, address: int, data: bytes) -> None:
        piece, start = self._memory.find(address, len(data))
        piece[start : start + len(data)] = data

    def download(self, address: int, size: int) -> bytes:
        piece, start = self._memory.find(address, size)
        return bytes(piece[start : start + size])

    def must(self, call: str, *arguments: int) -> None:
        if call == "cuMemFree_v2":
            del self._memory.pieces[arguments[0]]

    def stream(self) -> int:
        return 1

    def synchronize(self, stream: int) -> None:
        assert stream == 1

    def launch_arguments(self, *values: object) -> tuple[object, ...]:
        return values

    def cuLaunchKernel(self, name, *arguments):
        blocks, _, _, threads, _, _, _, _, values, _ = arguments
        kernel, self.launches = self._kernels[name], self.launches + 1
        assert [BITS[kind] for _, kind in kernel.parameters] == [8 * len(bytes(value)) for value in values]
        numbers = [int.from_bytes(bytes(value), "little") for value in values]
        named = {parameter: number for (parameter, _), number in zip(kernel.parameters, numbers, strict=True)}
        for block in range(blocks):
            for thread in range(threads):
                special = {"%tid.x": thread, "%ntid.x": threads, "%ctaid.x": block, "%nctaid.x": blocks}
                Thread(kernel, self._memory, named, special).run()
        return 0
