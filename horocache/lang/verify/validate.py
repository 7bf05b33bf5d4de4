"""Structural checks of a compiled program, before all other checks: numbers are in range, and nothing is missing.

Errors name the place as a JSON pointer into the program file.
"""

from __future__ import annotations

from collections.abc import Iterator

from horocache.lang.errors import VerificationError
from horocache.lang.frontend.collectives import INPUT, OUTPUT, Collective
from horocache.lang.program.compiled_program import CompiledProgram, Operand, RankProgram, Step
from horocache.lang.program.instruction_dag import POPS, PUSHES, READS_SOURCE

MAX_RANKS = 4096
MAX_STEPS = 500_000
MAX_CHUNKS = 1 << 24  # fine chunks in all buffers together, and in all steps together
MAX_TILE_BYTES = 5 << 20  # the longest message of MSCCLang's Simple protocol
MAX_REFINEMENT = 1 << 10
MAX_CHANNEL = 1 << 16


def check_structure(program: CompiledProgram, collective: Collective) -> None:
    """Raise VerificationError for the first structural error; the message names its place."""
    _in_range("/program/refinement", program.refinement, 1, MAX_REFINEMENT)
    _in_range("/program/min_slots", program.min_slots, 1, 8)
    _in_range("/program/slots", program.slots, 0, 8)
    _in_range("/program/tile", program.tile, 0, MAX_TILE_BYTES)
    if 0 < program.slots < program.min_slots:
        raise VerificationError(f"/program/slots: {program.slots} are less than min_slots, {program.min_slots}.")
    if program.min_bytes < 0 or program.max_bytes < 0 or 0 < program.max_bytes < program.min_bytes:
        raise VerificationError(
            f"/program/min_bytes: {program.min_bytes} to {program.max_bytes} is not a range of sizes."
        )
    if len(program.programs) != program.ranks:
        raise VerificationError(f"/program/programs: {len(program.programs)} of them, for {program.ranks} ranks.")
    if program.count_steps() > MAX_STEPS:
        raise VerificationError(f"/program/programs: {program.count_steps()} steps; {MAX_STEPS} are allowed.")
    left = MAX_CHUNKS
    for rank, one in enumerate(program.programs):
        extents = _extents(program, one, rank, collective)
        left -= sum(extents.values())
        if left < 0:
            raise VerificationError(
                f"/program/programs/{rank}: the buffers have more than {MAX_CHUNKS} fine chunks in all."
            )
        _check_rank(program, one, rank, extents, collective.classes)
    if (
        sum(step.count for one in program.programs for thread_block in one.thread_blocks for step in thread_block.steps)
        > MAX_CHUNKS
    ):
        raise VerificationError(f"/program/programs: the steps have more than {MAX_CHUNKS} fine chunks in all.")
    _check_connections(program)


def _in_range(where: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise VerificationError(f"{where}: {number} is not from {least} to {most}.")


def _extents(program: CompiledProgram, one: RankProgram, rank: int, collective: Collective) -> dict[str, int]:
    """Number of fine chunks in each of the rank's buffers."""
    extents = {name: chunks * program.refinement for name, chunks in collective.buffers(rank).items()}
    for name, chunks in one.scratch.items():
        if name in (INPUT, OUTPUT) or not name:
            raise VerificationError(f"/program/programs/{rank}/scratch: {name!r} is not the name of a scratch buffer.")
        extents[name] = chunks
    for name, chunks in extents.items():
        _in_range(f"/program/programs/{rank}/scratch/{name}", chunks, 0, MAX_CHUNKS)
    return extents


def _check_rank(program: CompiledProgram, one: RankProgram, rank: int, extents: dict[str, int], classes: int) -> None:
    for s, thread_block in enumerate(one.thread_blocks):
        where = f"/program/programs/{rank}/thread_blocks/{s}"
        _in_range(f"{where}/channel", thread_block.channel, 0, MAX_CHANNEL)
        for word, peer in (("send", thread_block.send), ("receive", thread_block.receive)):
            _in_range(f"{where}/{word}", peer, -1, program.ranks - 1)
            if peer == rank:
                raise VerificationError(f"{where}/{word}: rank {rank} has no connection with itself.")
        if not thread_block.steps:
            raise VerificationError(f"{where}/steps: there are none.")
        for i, step in enumerate(thread_block.steps):
            at = f"{where}/steps/{i}"
            for word, peer, ops in (("send", thread_block.send, PUSHES), ("receive", thread_block.receive, POPS)):
                if step.op in ops and peer < 0:
                    raise VerificationError(
                        f"{at}/op: {step.op} in a thread block without a rank to {word} to or from."
                    )
            _check_step(program, step, at, extents)
            _check_classes(program, step, at, classes)
            _check_waits(one, s, step, at)


def _check_step(program: CompiledProgram, step: Step, at: str, extents: dict[str, int]) -> None:
    _in_range(f"{at}/count", step.count, 1, MAX_CHUNKS)
    _in_range(f"{at}/size_class", step.size_class, 0, MAX_CHUNKS)
    for word, place, wanted in (
        ("source", step.source, step.op in READS_SOURCE),
        ("destination", step.destination, step.op != "s"),
    ):
        if (place is not None) != wanted:
            raise VerificationError(f"{at}/{word}: {'missing from' if wanted else 'given for'} {step.op}.")
        if place is not None:
            _check_place(step.count, place, f"{at}/{word}", extents)
    if step.source is not None and step.destination is not None:
        if (step.source[1] - step.destination[1]) % program.refinement:
            raise VerificationError(f"{at}/destination: it begins at another part of a chunk than the source.")
        same = step.source[0] == step.destination[0]
        if same and abs(step.source[1] - step.destination[1]) < step.count:
            raise VerificationError(f"{at}/destination: it overlaps with the source.")


def _check_place(count: int, place: Operand, where: str, extents: dict[str, int]) -> None:
    buffer, index = place
    if buffer not in extents:
        raise VerificationError(f"{where}/0: there is no buffer {buffer!r}; there are {', '.join(sorted(extents))}.")
    if not 0 <= index <= extents[buffer] - count:
        raise VerificationError(f"{where}/1: {index} and {count} chunks are outside of {buffer}'s {extents[buffer]}.")


def _check_classes(program: CompiledProgram, step: Step, at: str, classes: int) -> None:
    """Check that a step's size class is that of its chunks in inputs and outputs."""
    for place in (step.source, step.destination):
        if program.uniform or place is None or place[0] not in (INPUT, OUTPUT):
            continue
        there = place[1] // program.refinement % classes
        if there != step.size_class:
            raise VerificationError(f"{at}/size_class: {step.size_class}, but {place[0]}[{place[1]}] is of {there}.")


def _check_waits(one: RankProgram, thread_block: int, step: Step, at: str) -> None:
    for i, (other, index) in enumerate(step.waits):
        where = f"{at}/waits/{i}"
        _in_range(f"{where}/0", other, 0, len(one.thread_blocks) - 1)
        _in_range(f"{where}/1", index, 0, len(one.thread_blocks[other].steps) - 1)
        if other == thread_block:
            raise VerificationError(f"{where}: a step waits for its own thread block; those before it are over anyway.")


def _check_connections(program: CompiledProgram) -> None:
    """Check that each connection has exactly one thread block at each end."""
    ends: dict[tuple[str, int, int, int], str] = {}
    for kind, source, destination, channel, where in _ends(program):
        known = ends.setdefault((kind, source, destination, channel), where)
        if known != where:
            raise VerificationError(
                f"{where}: rank {source} to rank {destination} on channel {channel} is the connection of {known} too."
            )
    for kind, *connection in ends:
        other = "receive" if kind == "send" else "send"
        if (other, *connection) not in ends:
            source, destination, channel = connection
            raise VerificationError(
                f"{ends[kind, source, destination, channel]}: on the connection from rank {source} to rank "
                f"{destination} on channel {channel} no thread block {other}s."
            )


def _ends(program: CompiledProgram) -> Iterator[tuple[str, int, int, int, str]]:
    for rank, one in enumerate(program.programs):
        for index, thread_block in enumerate(one.thread_blocks):
            where = f"/program/programs/{rank}/thread_blocks/{index}"
            if thread_block.send >= 0:
                yield "send", rank, thread_block.send, thread_block.channel, where
            if thread_block.receive >= 0:
                yield "receive", thread_block.receive, rank, thread_block.channel, where
