"""The compiler: lowers a written program, fuses and schedules its instructions, and verifies the result.

Note [What is compiled is verified]
Fusion, channel assignment and orders are heuristics. The compiler runs each result in the abstract interpreter and
discards it if it is wrong. The last attempt fuses nothing and keeps program order, which is correct by construction. A
program that satisfies its collective therefore always compiles, unless the thread blocks, channels or slots that the
user gave are impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from horocache.lang.compiler import channels, fusion, threadblocks
from horocache.lang.compiler.schedule import Graph, circle, graph_of, minimal_slots, orders, schedule
from horocache.lang.errors import DeadlockError, PostconditionError, RaceError, ScheduleError, VerificationError
from horocache.lang.frontend.trace import Program
from horocache.lang.program.collective_spec import promise_of
from horocache.lang.program.compiled_program import CompiledProgram, RankProgram
from horocache.lang.program.instruction_dag import POPS, PUSHES, Instruction, lower, refinement
from horocache.lang.verify.verifier import verify


def compile_program(program: Program) -> CompiledProgram:
    """Compile and verify a program.

    Returns:
        The compiled program. Every process compiles a program to the same result.

    Raises:
        UsageError: the program has not been written to its end.
        PostconditionError: the program does not implement its collective.
        ScheduleError: the thread blocks, channels or slots that the user gave are impossible.
    """
    program.check_written()
    return compile_traced(program)


def compile_for_msccl(program: Program) -> CompiledProgram:
    """Compile and verify a program for MSCCL's runtimes.

    In these runtimes, a step that pops and pushes waits until it can do both.

    Returns:
        The compiled program. It needs as few slots in these runtimes as the compiler can reach, usually one.

    Raises:
        UsageError: the program has not been written to its end.
        PostconditionError: the program does not implement its collective.
        ScheduleError: the thread blocks, channels or slots that the user gave are impossible.
    """
    program.check_written()
    return compile_traced(program, at_once=True)


def compile_traced(program: Program, *, at_once: bool = False) -> CompiledProgram:
    """Compile and verify the operations that have been written so far.

    Args:
        program: a program, which may still be open.
        at_once: True for runtimes in which a step that pops and pushes waits until it can do both, and whose
            connections may have only one slot.

    Raises:
        PostconditionError: the operations do not implement the collective.
        ScheduleError: the thread blocks, channels or slots that the user gave are impossible.
    """
    check_postcondition(program)
    wrong: list[str] = []
    for attempt in _attempts(program, at_once):
        if program.slots is not None and attempt.min_slots > program.slots:
            wrong.append(f"needs {attempt.min_slots} slots, and has {program.slots}")
            continue
        compiled = _compiled(program, attempt)
        try:
            facts = verify(compiled, program.collective, at_once=at_once)
        except (VerificationError, RaceError, DeadlockError) as error:
            wrong.append(str(error))
            continue
        return facts.marked(compiled)
    raise ScheduleError(f"program {program.name!r} cannot be scheduled: {'; '.join(wrong)}.", program.location)


def check_postcondition(program: Program) -> None:
    """Raise PostconditionError if the written operations do not implement the collective."""
    collective, memory = program.collective, program.memory
    wrong = []
    for rank in range(collective.num_ranks):
        for index in range(collective.output_chunks(rank)):
            expected = collective.expected(rank, index)
            if expected is None:
                continue
            buffer, at = collective.alias(rank, "output", index)
            want, have = memory.values.of(expected), memory.at(rank, buffer, at).value
            if want != have:
                wrong.append(
                    f"output[{index}] of rank {rank}: expected {memory.values.text(want)}, got "
                    f"{memory.values.text(have)}"
                )
    if wrong:
        raise PostconditionError(program.name, collective.name, wrong, program.location)


@dataclass(frozen=True)
class _Attempt:
    programs: tuple[RankProgram, ...]
    min_slots: int


def _attempts(program: Program, at_once: bool) -> Iterator[_Attempt]:
    """Yield ways to compile the program, the best first; with ``at_once``, ways that need one slot before all others.

    Each round uses one set of fused pairs, and removes at least one pair for the next round. The last round fuses
    nothing, so program order needs only one slot.
    """
    nodes = lower(program)
    pairs = fusion.candidates(nodes) if program.fuse else {}
    with_more: list[tuple[int, Callable[[], _Attempt]]] = []
    while True:
        assigned = channels.assign(nodes, pairs, program.channels)
        living = fusion.merge(nodes, assigned.pairs, program.collective)
        thread_block_of = threadblocks.place(living, assigned)
        graph = graph_of(living, lambda node, of=(living, assigned): threadblocks.connection(node, *of))  # type: ignore[misc]
        split: set[int] = set()
        for by in orders(graph):
            order = schedule(graph, by)
            slots = None if order is None else minimal_slots(graph, order, thread_block_of, at_once)
            if order is None or slots is None:
                continue
            ranks = program.collective.num_ranks
            emit = partial(_emitted, living, order, thread_block_of, assigned, ranks, slots)
            if at_once and slots > 1:
                with_more.append((slots, emit))
                split = split or _to_split(graph, order, thread_block_of)
            else:
                yield emit()
        if not assigned.pairs:
            break
        pairs = {receive: send for receive, send in assigned.pairs.items() if receive not in split} if split else {}
        nodes = lower(program)  # fusion has changed the previous list
    for _, last in sorted(with_more, key=lambda each: each[0]):
        yield last()


def _emitted(
    living: Sequence[Instruction | None],
    order: Sequence[int],
    thread_block_of: Sequence[Hashable],
    assigned: channels.Channels,
    ranks: int,
    slots: int,
) -> _Attempt:
    return _Attempt(threadblocks.emit(living, order, thread_block_of, assigned, ranks), slots)


def _to_split(graph: Graph, order: list[int], thread_block_of: list[Hashable]) -> set[int]:
    """Fused instructions to split, because they deadlock with ``at_once`` and one slot: those of one thread block."""
    around = circle(graph, order, thread_block_of, 1, True)
    merged = [number for number in around if (node := graph.nodes[number]) and node.op in POPS and node.op in PUSHES]
    if not merged:
        return set()
    thread_block = thread_block_of[min(merged, key=lambda number: (_rank(graph, number), number))]
    return {
        n for n in order if thread_block_of[n] == thread_block and (node := graph.nodes[n]) and node.op in POPS & PUSHES
    }


def _rank(graph: Graph, number: int) -> int:
    node = graph.nodes[number]
    assert node is not None
    return node.rank


def _compiled(program: Program, attempt: _Attempt) -> CompiledProgram:
    return CompiledProgram(
        program.name,
        promise_of(program.collective),
        program.collective.num_ranks,
        attempt.programs,
        refinement(program),
        program.uniform,
        program.protocol,  # type: ignore[arg-type]
        attempt.min_slots,
        program.slots or 0,
    )
