"""Encoding of compiled programs for the core, as Note [Programs in memory] in cpp_core/program/program.h defines it."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import get_args

from horocache.base.operation_codes import (
    OP_ALLGATHER,
    OP_ALLREDUCE,
    OP_ALLTOALL,
    OP_BROADCAST,
    OP_GATHER,
    OP_REDUCE,
    OP_REDUCESCATTER,
    OP_SCATTER,
)
from horocache.lang.frontend.collectives import INPUT, OUTPUT
from horocache.lang.program.collective_spec import collective_of
from horocache.lang.program.compiled_program import (
    CompiledProgram,
    Operand,
    OpName,
    Protocol,
    RankProgram,
    Step,
    ThreadBlock,
)

_MAGIC = int.from_bytes(b"HCCPROG1", "little")
# The operations of a job that programs can run, with their codes.
OPERATIONS = {
    "allreduce": OP_ALLREDUCE,
    "allgather": OP_ALLGATHER,
    "broadcast": OP_BROADCAST,
    "reducescatter": OP_REDUCESCATTER,
    "alltoall": OP_ALLTOALL,
    "reduce": OP_REDUCE,
    "gather": OP_GATHER,
    "scatter": OP_SCATTER,
}

_LIBRARY_MAGIC = int.from_bytes(b"HCCPRLF1", "little")
PROTOCOLS = get_args(Protocol)
_OPS = {name: number for number, name in enumerate(("s", "r", "cpy", "re", "rrc", "rcs", "rrs", "rrcs"))}
_FINISHES = 8  # flag in the opcode's word: the step has ``finishes``
assert set(_OPS) == set(get_args(OpName))


def pack(program: CompiledProgram) -> bytes:
    """Encode a verified program as little-endian 64-bit words."""
    return _numbers(*_words(program))


def pack_library(programs: Sequence[tuple[str, CompiledProgram, bool]], rules: str, any_order: bool = False) -> bytes:
    """Encode the programs of a job for the core, which decodes them into the Library of cpp_core/program/library.h.

    Args:
        programs: name, verified program, and True if the job must have the program's number of ranks.
        rules: selector rules for the programs.
        any_order: True if floating-point sums may be folded in another order than rank order.
    """
    parts = [_numbers(_LIBRARY_MAGIC), _text(rules.encode()), _numbers(len(programs))]
    for name, program, required in programs:
        promise = program.collective
        operation = OPERATIONS[promise.name]
        protocol = PROTOCOLS.index(program.protocol)
        parts.append(_text(name.encode()))
        parts.append(_numbers(operation, promise.root, int(required), int(any_order or program.rank_order)))
        parts.append(_numbers(protocol, program.slots, program.tile))
        parts.append(_numbers(program.min_bytes, program.max_bytes))
        parts.append(_text(pack(program)))
    return b"".join(parts)


def _numbers(*values: int) -> bytes:
    words = array("q", values)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _text(value: bytes) -> bytes:
    return _numbers(len(value)) + value + bytes(-len(value) % 8)


def _words(program: CompiledProgram) -> Iterator[int]:
    collective = collective_of(program.collective, program.ranks)
    yield from (_MAGIC, program.ranks, collective.classes, program.refinement)
    yield from (int(collective.inplace), int(program.uniform), program.min_slots)
    for rank, one in enumerate(program.programs):
        sizes = collective.buffers(rank)
        extents = {name: sizes.get(name, 0) * program.refinement for name in (INPUT, OUTPUT)} | one.scratch
        yield from _rank(one, extents)


def _rank(one: RankProgram, extents: dict[str, int]) -> Iterator[int]:
    numbers = {name: number for number, name in enumerate(extents)}
    yield from (len(extents), *extents.values(), len(one.thread_blocks))
    for thread_block in one.thread_blocks:
        yield from _thread_block(thread_block, numbers)


def _thread_block(thread_block: ThreadBlock, numbers: dict[str, int]) -> Iterator[int]:
    yield from (thread_block.send, thread_block.receive, thread_block.channel, len(thread_block.steps))
    for step in thread_block.steps:
        yield from _step(step, numbers)


def _step(step: Step, numbers: dict[str, int]) -> Iterator[int]:
    yield from (_OPS[step.op] + _FINISHES * step.finishes, step.size_class, step.count)
    for place in (step.source, step.destination):
        yield from _place(place, numbers)
    yield len(step.waits)
    for thread_block, index in step.waits:
        yield from (thread_block, index)


def _place(place: Operand | None, numbers: dict[str, int]) -> tuple[int, int]:
    return (-1, 0) if place is None else (numbers[place[0]], place[1])
