"""The compiled program, as files hold it and as the runtime runs it: for each rank, thread blocks of steps.

Note [What a program means]
Each thread block runs its steps one after the other. A step begins when the steps that it waits for have finished, when
a message has arrived if it pops one, and when the connection has a free slot if it pushes one. A step that pops and
pushes frees the slot of its message before it waits for a slot to push. Connections deliver in order. A connection
(source, destination, channel) has one thread block that sends and one that receives. Steps count in fine chunks: each
chunk of the collective is divided into ``refinement`` equal parts. instruction_dag.py defines each ``op``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

OpName = Literal["s", "r", "cpy", "re", "rrc", "rcs", "rrs", "rrcs"]
Protocol = Literal["auto", "Simple", "LL", "LL128", "Direct"]
Operand = tuple[str, int]  # buffer, index of the first fine chunk


class Step(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One instruction of a thread block.

    Attributes:
        op: opcode.
        count: number of fine chunks.
        source: the chunks that are read; None for a step that pops a message instead.
        destination: the chunks that are written or added; None for a send.
        size_class: size class of the chunk that contains the first fine chunk.
        waits: (thread block, step) of this rank that must finish before; steps of the same thread block are not listed.
        finishes: True if each sum that the step makes contains one chunk of every rank, each once: the runtime scales
            the sums in this step. False in all steps if for any step this is true of only some of its sums.
    """

    op: OpName
    count: int
    source: Operand | None = None
    destination: Operand | None = None
    size_class: int = 0
    waits: tuple[tuple[int, int], ...] = ()
    finishes: bool = False


class ThreadBlock(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A thread block: steps that run one after the other.

    Attributes:
        steps: the steps in their order.
        send: the rank that it sends to; -1: none.
        receive: the rank that it receives from; -1: none.
        channel: channel of its connections.
    """

    steps: tuple[Step, ...]
    send: int = -1
    receive: int = -1
    channel: int = 0


class RankProgram(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The program of one rank.

    Attributes:
        thread blocks: the thread blocks, which run concurrently.
        scratch: number of fine chunks in each scratch buffer.
    """

    thread_blocks: tuple[ThreadBlock, ...]
    scratch: dict[str, int] = {}


class Promise(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The specification of a program: the collective that it implements.

    Attributes:
        name: name of the collective, such as ``allreduce``.
        chunk_factor: chunk factor of a built-in collective; number of size classes of a user-defined collective.
        inplace: True if input and output share memory.
        root: root rank; -1: the collective has no root.
        inputs: number of chunks in each rank's input; only for user-defined collectives.
        outputs: number of chunks in each rank's output; only for user-defined collectives.
        post: for each rank and output chunk, the input chunks whose sum it must be, or null if its contents do not
            matter; only for user-defined collectives.
        pre: for each rank and input chunk, true if it holds data; only for user-defined collectives.
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
        name: name of the algorithm.
        collective: the collective that the program implements.
        ranks: number of ranks.
        programs: program of each rank.
        refinement: number of fine chunks in a chunk.
        uniform: True if all chunks must have one size; False if each chunk has the size of its class.
        protocol: protocol of the connections: "auto", "Simple", "LL", "LL128" or "Direct".
        min_slots: smallest number of slots of a connection; with fewer slots the program would deadlock.
        slots: number of slots that the user asked for; 0: the runtime chooses it, and at least ``min_slots``.
        tile: largest message in bytes; 0: the runtime chooses it.
        rank_order: True if every sum is folded in rank order, like the sums of the built-in algorithms.
        min_bytes: size in bytes of the smallest operation that the program is meant for.
        max_bytes: size in bytes below which operations must be; 0: no limit.
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
        """Number of steps of all ranks."""
        return sum(len(thread_block.steps) for program in self.programs for thread_block in program.thread_blocks)
