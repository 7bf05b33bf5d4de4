"""The instruction DAG: what each rank has to do, and what must come before what.

Note [Fine chunks]
A program of several instances, or with ``parallelize`` blocks, divides every chunk into ``refinement`` fine chunks, so
that each instance of a step has some of its own. From here on indices count fine chunks. Dependences are found among
these, so instances depend on each other exactly where they touch the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from horocache.lang.frontend.trace import REDUCE, Operation, Place, Program

# What an instruction does. Names are those of the paper (MSCCLang, section 4.2).
SEND = "s"  # push the source
RECV = "r"  # pop into the destination
COPY = "cpy"  # source to destination, of one rank
REDUCE_LOCAL = "re"  # add the source to the destination, of one rank
RECV_REDUCE_COPY = "rrc"  # pop, and add to the destination
RECV_COPY_SEND = "rcs"  # pop into the destination, and push the same
RECV_REDUCE_SEND = "rrs"  # pop, add the destination, push the sum, which is not stored
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
        number: its position in the list of all; the order in which they were written.
        op: what it does.
        rank: who does it.
        source: what it reads, in fine chunks; None if that comes from a connection.
        destination: what it reads or writes; None for a send.
        operation: of the program, for messages.
        size_class: of the first chunk that it touches.
        lane: which of the instances it belongs to, with its fragment; different ones have different channels.
        send_strand, recv_strand: that the user gave, or None.
        deps: instructions of the same rank that must be over before it begins.
        pushes_to: the instruction of another rank that pops what this one pushes.
        pops_from: the one that pushed what this one pops.
        message: the number of what it pushes: that of its send, before any merging.
    """

    number: int
    op: str
    rank: int
    source: Place | None
    destination: Place | None
    operation: Operation
    size_class: int = 0
    lane: tuple[int, ...] = ()
    send_strand: int | None = None
    recv_strand: int | None = None
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
    """Who wrote each fine chunk last, and who has read it since."""

    def __init__(self) -> None:
        self._writers: dict[tuple[int, str, int], int] = {}
        self._readers: dict[tuple[int, str, int], list[int]] = {}

    def read(self, place: Place, number: int) -> Iterable[int]:
        """Note a read; gives what it depends on."""
        for index in range(place.index, place.index + place.count):
            key = (place.rank, place.buffer, index)
            writer = self._writers.get(key)
            if writer is not None:
                yield writer
            self._readers.setdefault(key, []).append(number)

    def write(self, place: Place, number: int) -> Iterable[int]:
        """Note a write; gives what it depends on."""
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
    """How many fine chunks a chunk has."""
    factors = {math.prod(factor for _, factor in operation.fragment) for operation in program.operations}
    return program.instances * math.lcm(*factors) if factors else program.instances


def lower(program: Program) -> list[Instruction]:
    """Every step as instructions, with what they depend on.

    Returns:
        In the order of the program, so each after whatever it depends on.
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
    """One for each time that the step is laid out."""
    lanes: list[tuple[int, ...]] = [(instance,) for instance in range(program.instances)]
    for number, factor in operation.fragment:
        lanes = [(*lane, number, copy) for lane in lanes for copy in range(factor)]
    return lanes


def _part(place: Place, fine: int, part: int, parts: int) -> Place:
    count = place.count * fine // parts
    return Place(place.rank, place.buffer, place.index * fine + part * count, count)


def _append(whole: Instruction, accesses: _Accesses, out: list[Instruction]) -> None:
    """Split what is done by two ranks, and note what it depends on."""
    operation, source, destination = whole.operation, whole.source, whole.destination
    assert source is not None and destination is not None
    reduces = operation.kind == REDUCE
    if not operation.is_remote:
        strand = operation.send_strand if operation.recv_strand is None else operation.recv_strand
        op = REDUCE_LOCAL if reduces else COPY
        node = replace(whole, number=len(out), op=op, rank=source.rank, send_strand=strand, recv_strand=strand)
        node.deps = _depend(node, accesses, reduces)
        out.append(node)
        return
    send = replace(
        whole, number=len(out), op=SEND, rank=source.rank, destination=None, send_strand=operation.send_strand
    )
    send.deps = _depend(send, accesses, False)
    op = RECV_REDUCE_COPY if reduces else RECV
    receive = replace(whole, number=len(out) + 1, op=op, rank=destination.rank, source=None)
    receive.recv_strand, receive.deps = operation.recv_strand, _depend(receive, accesses, reduces)
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
    """Of each instruction, those that depend on it."""
    found: list[list[int]] = [[] for _ in instructions]
    for node in instructions:
        for dep in node.deps:
            found[dep].append(node.number)
    return found
