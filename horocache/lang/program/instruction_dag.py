"""The instruction DAG: the instructions of each rank, and the dependencies between them.

Note [Fine chunks]
A program of several instances or with ``parallelize`` blocks divides every chunk into ``refinement`` fine chunks, so
that each instance of an operation has fine chunks of its own. For example, a program of 2 instances with a block
``parallelize(3)`` has 6 fine chunks in a chunk. An operation in the block has 6 instances with one fine chunk each, any
other operation has 2 instances with 3 fine chunks each.
From here on, indices count fine chunks. Dependencies are found per fine chunk, so instances depend on each other only
where they access the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from horocache.lang.frontend.trace import REDUCE, Operation, Place, Program

# Opcodes, with the names of the paper (MSCCLang, section 4.2).
SEND = "s"  # push the source
RECV = "r"  # pop into the destination
COPY = "cpy"  # copy the source to the destination, within one rank
REDUCE_LOCAL = "re"  # add the source to the destination, within one rank
RECV_REDUCE_COPY = "rrc"  # pop, and add to the destination
RECV_COPY_SEND = "rcs"  # pop into the destination, and push the same data
RECV_REDUCE_SEND = "rrs"  # pop, add the destination, push the sum without storing it
RECV_REDUCE_COPY_SEND = "rrcs"  # pop, add to the destination, push the sum

POPS = frozenset({RECV, RECV_REDUCE_COPY, RECV_COPY_SEND, RECV_REDUCE_SEND, RECV_REDUCE_COPY_SEND})
PUSHES = frozenset({SEND, RECV_COPY_SEND, RECV_REDUCE_SEND, RECV_REDUCE_COPY_SEND})
READS_SOURCE = frozenset({SEND, COPY, REDUCE_LOCAL})
READS_DESTINATION = frozenset({REDUCE_LOCAL, RECV_REDUCE_COPY, RECV_REDUCE_SEND, RECV_REDUCE_COPY_SEND})
WRITES = frozenset({RECV, COPY, REDUCE_LOCAL, RECV_REDUCE_COPY, RECV_COPY_SEND, RECV_REDUCE_COPY_SEND})


@dataclass
class Instruction:
    """A node of the DAG.

    Attributes:
        number: position in the list of all instructions, which is in program order.
        op: opcode.
        rank: rank that runs the instruction.
        source: the fine chunks that it reads; None if it pops a message instead.
        destination: the fine chunks that it reads or writes; None for a send.
        operation: operation of the program from which it was made.
        size_class: size class of the first chunk that it accesses.
        lane: instance of the program, and instance of each fragment; different lanes use different channels.
        send_thread_block, recv_thread_block: thread blocks that the user gave, or None.
        deps: instructions of the same rank that must finish before it begins.
        pushes_to: instruction of another rank that pops the message that this one pushes.
        pops_from: instruction of another rank that pushes the message that this one pops.
        message: number of the message that it pushes, which is the number of its send before fusion.
    """

    number: int
    op: str
    rank: int
    source: Place | None
    destination: Place | None
    operation: Operation
    size_class: int = 0
    lane: tuple[int, ...] = ()
    send_thread_block: int | None = None
    recv_thread_block: int | None = None
    deps: set[int] = field(default_factory=set)
    pushes_to: int | None = None
    pops_from: int | None = None
    message: int | None = None

    def __str__(self) -> str:
        parts = [f"rank {self.rank}: {self.op}"]
        if self.source is not None:
            parts.append(f"from {self.source.buffer}[{self.source.index}]")
        if self.destination is not None:
            parts.append(f"at {self.destination.buffer}[{self.destination.index}]")
        return " ".join(parts) + f" ({self.operation.location})"


class _Accesses:
    """The instruction that wrote each fine chunk last, and the instructions that have read it since."""

    def __init__(self) -> None:
        self._writers: dict[tuple[int, str, int], int] = {}
        self._readers: dict[tuple[int, str, int], list[int]] = {}

    def read(self, place: Place, number: int) -> Iterable[int]:
        """Record a read, and yield the instructions that it depends on."""
        for index in range(place.index, place.index + place.count):
            key = (place.rank, place.buffer, index)
            writer = self._writers.get(key)
            if writer is not None:
                yield writer
            self._readers.setdefault(key, []).append(number)

    def write(self, place: Place, number: int) -> Iterable[int]:
        """Record a write, and yield the instructions that it depends on."""
        for index in range(place.index, place.index + place.count):
            key = (place.rank, place.buffer, index)
            readers = self._readers.pop(key, None)
            writer = self._writers.get(key)
            if readers:
                yield from readers
            if writer is not None:
                yield writer
            self._writers[key] = number


def refinement(program: Program) -> int:
    """Number of fine chunks in a chunk."""
    factors = {math.prod(factor for _, factor in operation.fragment) for operation in program.operations}
    return program.instances * math.lcm(*factors) if factors else program.instances


def lower(program: Program) -> list[Instruction]:
    """Lower every operation to instructions with their dependencies.

    Returns:
        The instructions in program order, so each comes after its dependencies.
    """
    fine = refinement(program)
    accesses = _Accesses()
    instructions: list[Instruction] = []
    for operation in program.operations:
        lanes = _lanes(program, operation)
        for part, lane in enumerate(lanes):
            source, destination = (
                _part(place, fine, part, len(lanes)) for place in (operation.source, operation.destination)
            )
            skipped = source.index // fine - operation.source.index
            size_class = (operation.size_class + skipped) % program.collective.classes
            _append(Instruction(0, "", 0, source, destination, operation, size_class, lane), accesses, instructions)
    return instructions


def _lanes(program: Program, operation: Operation) -> list[tuple[int, ...]]:
    """The lane of each instance of an operation."""
    lanes: list[tuple[int, ...]] = [(instance,) for instance in range(program.instances)]
    for number, factor in operation.fragment:
        lanes = [(*lane, number, copy) for lane in lanes for copy in range(factor)]
    return lanes


def _part(place: Place, fine: int, part: int, parts: int) -> Place:
    count = place.count * fine // parts
    return Place(place.rank, place.buffer, place.index * fine + part * count, count)


def _append(whole: Instruction, accesses: _Accesses, out: list[Instruction]) -> None:
    """Append the instructions of one instance with their dependencies: between two ranks, a send and a receive."""
    operation, source, destination = whole.operation, whole.source, whole.destination
    assert source is not None and destination is not None
    reduces = operation.kind == REDUCE
    if not operation.is_remote:
        thread_block = (
            operation.send_thread_block if operation.recv_thread_block is None else operation.recv_thread_block
        )
        op = REDUCE_LOCAL if reduces else COPY
        node = replace(
            whole,
            number=len(out),
            op=op,
            rank=source.rank,
            send_thread_block=thread_block,
            recv_thread_block=thread_block,
        )
        node.deps = _depend(node, accesses, reduces)
        out.append(node)
        return
    send = replace(
        whole,
        number=len(out),
        op=SEND,
        rank=source.rank,
        destination=None,
        send_thread_block=operation.send_thread_block,
    )
    send.deps = _depend(send, accesses, False)
    op = RECV_REDUCE_COPY if reduces else RECV
    receive = replace(whole, number=len(out) + 1, op=op, rank=destination.rank, source=None)
    receive.recv_thread_block, receive.deps = operation.recv_thread_block, _depend(receive, accesses, reduces)
    send.pushes_to, receive.pops_from, send.message = receive.number, send.number, send.number
    out += [send, receive]


def _depend(node: Instruction, accesses: _Accesses, reduces: bool) -> set[int]:
    deps: set[int] = set()
    if node.source is not None:
        deps.update(accesses.read(node.source, node.number))
    if node.destination is not None:
        if reduces:
            deps.update(accesses.read(node.destination, node.number))
        deps.update(accesses.write(node.destination, node.number))
    deps.discard(node.number)
    return deps


def users(instructions: Sequence[Instruction]) -> list[list[int]]:
    """For each instruction, the instructions that depend on it."""
    found: list[list[int]] = [[] for _ in instructions]
    for node in instructions:
        for dep in node.deps:
            found[dep].append(node.number)
    return found
