"""``msccl.language.ir``: a compiled program in the classes of msccl-tools, for inspection."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from horocache.lang.frontend import collectives as own
from horocache.lang.msccl.language.collectives import Buffer, buffer_of
from horocache.lang.program.compiled_program import CompiledProgram, Operand, RankProgram, Step

__all__ = ["ChunkRef", "Gpu", "Instruction", "Op", "Threadblock"]


class Instruction(Enum):
    """Opcode of a step; its value is its name in MSCCL-XML."""

    nop = "nop"
    send = "s"
    recv = "r"
    recv_copy_send = "rcs"
    recv_reduce_send = "rrs"
    recv_reduce_copy = "rrc"
    recv_reduce_copy_send = "rrcs"
    copy = "cpy"
    reduce = "re"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class ChunkRef:
    """Adjacent chunks in a buffer of a rank."""

    rank: int
    buffer: Buffer | str
    index: int
    size: int


@dataclass(eq=False)
class Op:
    """A step. ``src`` and ``dst`` are chunks of this rank; a step with only one of them has it as both."""

    inst: Instruction
    rank: int
    src: ChunkRef
    dst: ChunkRef
    step: int
    tb: int
    channel: int
    depends: list[Op] = field(default_factory=list)

    def cnt(self) -> int:
        """Number of chunks."""
        return self.src.size


@dataclass(eq=False)
class Threadblock:
    """Steps that run one after the other, with at most one peer to send to and one to receive from (-1: none)."""

    id: int
    channel: int
    send: int
    recv: int
    ops: list[Op]


@dataclass(eq=False)
class Gpu:
    """The program of one rank. ``scratch`` has the number of chunks of each scratch buffer."""

    rank: int
    threadblocks: list[Threadblock]
    input_chunks: int
    output_chunks: int
    scratch: dict[str, int]


@dataclass(eq=False)
class Program:
    """A compiled program."""

    name: str
    collective: str
    inplace: bool
    protocol: str
    gpus: list[Gpu]


def lowered(compiled: CompiledProgram, collective: own.Collective) -> Program:
    """Convert a compiled program to the classes of msccl-tools; their chunks are its fine chunks."""
    fine = compiled.refinement
    gpus = [
        Gpu(
            rank,
            _blocks(rank, one),
            collective.input_chunks(rank) * fine,
            collective.output_chunks(rank) * fine,
            dict(one.scratch),
        )
        for rank, one in enumerate(compiled.programs)
    ]
    promise = compiled.collective
    return Program(compiled.name, promise.name, promise.inplace, compiled.protocol, gpus)


def _blocks(rank: int, one: RankProgram) -> list[Threadblock]:
    blocks = [
        Threadblock(
            s,
            thread_block.channel,
            thread_block.send,
            thread_block.receive,
            [_op(rank, s, i, thread_block.channel, step) for i, step in enumerate(thread_block.steps)],
        )
        for s, thread_block in enumerate(one.thread_blocks)
    ]
    for block, thread_block in zip(blocks, one.thread_blocks, strict=True):
        for op, step in zip(block.ops, thread_block.steps, strict=True):
            op.depends = [blocks[other].ops[index] for other, index in step.waits]
    return blocks


def _op(rank: int, tb: int, index: int, channel: int, step: Step) -> Op:
    source = step.source or step.destination
    destination = step.destination or step.source
    assert source is not None and destination is not None
    src, dst = (_place(rank, place, step.count) for place in (source, destination))
    return Op(Instruction(step.op), rank, src, dst, index, tb, channel)


def _place(rank: int, place: Operand, count: int) -> ChunkRef:
    buffer, index = place
    return ChunkRef(rank, buffer_of(buffer), index, count)
