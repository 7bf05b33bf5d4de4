"""The compiled program, as files hold it and as the runtime runs it: for each rank, strands of steps.

Note [What a program means]
Each strand runs its steps one after the other. A step begins when the steps that it waits for are over, when a message
has arrived if it pops one, and when the connection has a free slot if it pushes one; what pops frees its slot before it
waits for one to push. Connections deliver in order. A connection (source, destination, channel) has one strand that
sends and one that receives. Steps count in fine chunks: each chunk of the collective is divided into ``refinement``
equal parts. For what each ``op`` does, see instructions.py.
"""

from __future__ import annotations

from typing import Literal

import msgspec

OpName = Literal["s", "r", "cpy", "re", "rrc", "rcs", "rrs", "rrcs"]
Protocol = Literal["auto", "Simple", "LL", "LL128", "Direct"]
Operand = tuple[str, int]  # buffer, index of the first fine chunk


class Step(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One instruction of a strand.

    Attributes:
        op: what it does.
        count: fine chunks.
        source: what is read; None where a message is, and for none.
        destination: what is written, or added to.
        size_class: of the chunk that the first fine chunk belongs to.
        waits: (strand, step) of this rank that must be over before; those of its own strand are not listed.
        finishes: what it adds up are all ranks' chunks, each once: sums are scaled here. False everywhere if one step
            does so for some of its chunks only.
    """

    op: OpName
    count: int
    source: Operand | None = None
    destination: Operand | None = None
    size_class: int = 0
    waits: tuple[tuple[int, int], ...] = ()
    finishes: bool = False


class Strand(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Steps that run one after the other.

    Attributes:
        steps: in their order.
        send: the rank that it sends to; -1: none.
        receive: the rank that it receives from; -1: none.
        channel: of its connections.
    """

    steps: tuple[Step, ...]
    send: int = -1
    receive: int = -1
    channel: int = 0


class RankProgram(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one rank does.

    Attributes:
        strands: run side by side.
        scratch: fine chunks of each named buffer.
    """

    strands: tuple[Strand, ...]
    scratch: dict[str, int] = {}


class Promise(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The collective that a program implements.

    Attributes:
        name: ``allreduce``, or that of the user's own.
        chunk_factor: as it was given to the collective.
        inplace: input and output are one memory.
        root: -1: there is none.
        inputs: chunks of each rank's input; only for the user's own collectives.
        outputs: the same of outputs.
        post: for each rank and output chunk the input chunks whose sum it must be, null for anything; the same.
        pre: for each rank whether its input chunks hold data; the same.
    """

    name: str
    chunk_factor: int = 1
    inplace: bool = False
    root: int = -1
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    post: tuple[tuple[tuple[tuple[int, int], ...] | None, ...], ...] = ()
    pre: tuple[tuple[bool, ...], ...] = ()


class CompiledProgram(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A program that has been verified.

    Attributes:
        name: of the algorithm.
        collective: what it promises.
        ranks: how many it is for.
        programs: by rank.
        refinement: fine chunks in a chunk.
        uniform: whether all chunks have one size; see Note [Sizes of chunks] in trace.py.
        protocol: "auto", "Simple", "LL", "LL128" or "Direct".
        min_slots: sends that must be able to be outstanding on a connection; with fewer the program would hang.
        slots: as many as the user asked for; 0: as the runtime likes, but at least ``min_slots``.
        tile: the most bytes of a message; 0: as the runtime likes.
        rank_order: every sum is folded in rank order, as the built-in algorithms do it.
        min_bytes: the least data of an operation that it is meant for, in bytes.
        max_bytes: the most; 0: no limit.
    """

    name: str
    collective: Promise
    ranks: int
    programs: tuple[RankProgram, ...]
    refinement: int = 1
    uniform: bool = False
    protocol: Protocol = "auto"
    min_slots: int = 1
    slots: int = 0
    tile: int = 0
    rank_order: bool = False
    min_bytes: int = 0
    max_bytes: int = 0

    def count_steps(self) -> int:
        """Steps of all ranks."""
        return sum(len(strand.steps) for program in self.programs for strand in program.strands)
