"""From a program as it was written to one that runs: chosen, scheduled, and proved right before anybody gets it.

Note [What is compiled is verified]
Merging, channels and orders are heuristics. What they give is executed abstractly, and thrown away if it is wrong; the
last attempt, nothing merged and everything in the order in which it was written, is right by construction. So a program
that its collective accepts always compiles, unless what the user said of strands, channels or slots cannot be.
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
    """Compile and verify.

    Returns:
        The same for the same program, whatever the process.

    Raises:
        UsageError: the program has not been written to its end. PostconditionError: it does not do what its collective
        promises. ScheduleError: the strands, channels or slots that it asks for cannot be.
    """
    program.check_written()
    return compile_traced(program)


def compile_for_msccl(program: Program) -> CompiledProgram:
    """Compile for MSCCL's runtimes, which do not pop before they push; see :func:`compile_program`.

    Returns:
        A program that needs as few slots there as can be, one as a rule.
    """
    program.check_written()
    return compile_traced(program, at_once=True)


def compile_traced(program: Program, *, at_once: bool = False) -> CompiledProgram:
    """Compile what has been written so far; see :func:`compile_program`.

    Args:
        program: may be open still.
        at_once: for runtimes in which what pops and pushes does both at once, and that may have a single slot.
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
    """Whether what was written does what its collective promises. Raises PostconditionError."""
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
    """Ways to compile it, the best first; where all is done at once, those that need one slot before all others.

    Each round looks at one set of merged pairs and takes at least one of them away, so there are no more rounds than
    pairs. In the last one nothing is merged, and the order in which the program was written needs one slot.
    """
    nodes = lower(program)
    pairs = fusion.candidates(nodes) if program.fuse else {}
    with_more: list[tuple[int, Callable[[], _Attempt]]] = []
    while True:
        assigned = channels.assign(nodes, pairs, program.channels)
        living = fusion.merge(nodes, assigned.pairs, program.collective)
        strand_of = threadblocks.place(living, assigned)
        graph = graph_of(living, lambda node, of=(living, assigned): threadblocks.connection(node, *of))  # type: ignore[misc]
        split: set[int] = set()
        for by in orders(graph):
            order = schedule(graph, by)
            slots = None if order is None else minimal_slots(graph, order, strand_of, at_once)
            if order is None or slots is None:
                continue
            ranks = program.collective.num_ranks
            emit = partial(_emitted, living, order, strand_of, assigned, ranks, slots)
            if at_once and slots > 1:
                with_more.append((slots, emit))
                split = split or _to_split(graph, order, strand_of)
            else:
                yield emit()
        if not assigned.pairs:
            break
        pairs = {receive: send for receive, send in assigned.pairs.items() if receive not in split} if split else {}
        nodes = lower(program)  # merging has changed the last ones
    for _, last in sorted(with_more, key=lambda each: each[0]):
        yield last()


def _emitted(
    living: Sequence[Instruction | None],
    order: Sequence[int],
    strand_of: Sequence[Hashable],
    assigned: channels.Channels,
    ranks: int,
    slots: int,
) -> _Attempt:
    return _Attempt(threadblocks.emit(living, order, strand_of, assigned, ranks), slots)


def _to_split(graph: Graph, order: list[int], strand_of: list[Hashable]) -> set[int]:
    """What should not have been merged if there is one slot and all is done at once: a strand of a circle."""
    around = circle(graph, order, strand_of, 1, True)
    merged = [number for number in around if (node := graph.nodes[number]) and node.op in POPS and node.op in PUSHES]
    if not merged:
        return set()
    strand = strand_of[min(merged, key=lambda number: (_rank(graph, number), number))]
    return {n for n in order if strand_of[n] == strand and (node := graph.nodes[n]) and node.op in POPS & PUSHES}


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
