"""Proof that a program implements its collective in every interleaving, and with ``min_slots`` or more slots.

Note [One run stands for all] in interpreter.py explains why one run proves this. The verifier uses only the compiled
program and is independent of the compiler, so it finds the compiler's mistakes as well as those in a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from horocache.lang.errors import PostconditionError
from horocache.lang.frontend.collectives import INPUT, OUTPUT, Collective
from horocache.lang.frontend.symbolic import Origin, Values
from horocache.lang.program.compiled_program import CompiledProgram
from horocache.lang.verify.interpreter import Held, Machine
from horocache.lang.verify.validate import check_structure


@dataclass(frozen=True)
class Facts:
    """Properties of a program that its proof found.

    Attributes:
        rank_order: True if every sum in the result is folded in rank order, from rank 0 on.
        finishes: (rank, thread block, step) of the steps whose sums contain one chunk of every rank, each once.
    """

    rank_order: bool
    finishes: frozenset[tuple[int, int, int]]

    def marked(self, program: CompiledProgram) -> CompiledProgram:
        """A copy of the program with these properties stored in it."""
        replace = msgspec.structs.replace
        ranks = []
        for rank, one in enumerate(program.programs):
            thread_blocks = []
            for number, thread_block in enumerate(one.thread_blocks):
                steps = tuple(
                    replace(step, finishes=(rank, number, index) in self.finishes)
                    for index, step in enumerate(thread_block.steps)
                )
                thread_blocks.append(replace(thread_block, steps=steps))
            ranks.append(replace(one, thread_blocks=tuple(thread_blocks)))
        return replace(program, programs=tuple(ranks), rank_order=self.rank_order)


def verify(program: CompiledProgram, collective: Collective, *, at_once: bool = False) -> Facts:
    """Prove that a program implements a collective.

    Args:
        program: any program; the verifier trusts nothing in it.
        collective: the collective that the program must implement.
        at_once: True if a step that pops and pushes waits until it can do both, as in MSCCL's runtimes.

    Returns:
        Properties of the program that the proof found.

    Raises:
        VerificationError: a number is out of range, messages do not match, or a step reads a chunk without data.
        RaceError: two steps access a chunk in an undefined order.
        DeadlockError: thread blocks wait for each other for ever.
        PostconditionError: the result is wrong.
    """
    check_structure(program, collective)
    values = Values(collective.classes)
    memory = _initial(program, collective, values)
    machine = Machine(program, program.min_slots, values, memory, at_once)
    machine.run()
    rank_order = _check_results(program, collective, values, memory)
    clear = None not in machine.finishes.values()
    return Facts(rank_order, frozenset(at for at, whole in machine.finishes.items() if whole and clear))


def _initial(
    program: CompiledProgram, collective: Collective, values: Values
) -> dict[tuple[int, str], list[Held | None]]:
    memory: dict[tuple[int, str], list[Held | None]] = {}
    fine = program.refinement
    for rank, one in enumerate(program.programs):
        for buffer, chunks in collective.buffers(rank).items():
            memory[rank, buffer] = [None] * (chunks * fine)
        for buffer, chunks in one.scratch.items():
            memory[rank, buffer] = [None] * chunks
        for index in range(collective.input_chunks(rank)):
            if not collective.has_data(rank, index):
                continue
            buffer, at = collective.alias(rank, INPUT, index)
            for part in range(fine):
                value = values.of([(rank, index * fine + part)])
                memory[rank, buffer][at * fine + part] = Held(value, (rank, rank), at % collective.classes)
    return memory


def _promised(collective: Collective) -> Iterator[tuple[int, str, int, list[Origin]]]:
    """Rank, buffer, index and expected contents of every chunk in the postcondition."""
    for rank in range(collective.num_ranks):
        for index in range(collective.output_chunks(rank)):
            origins = collective.expected(rank, index)
            if origins is not None:
                yield rank, OUTPUT, index, list(origins)
        for index in range(collective.input_chunks(rank) if collective.promises_inputs else 0):
            origins = collective.expected_input(rank, index)
            if origins is not None:
                yield rank, INPUT, index, list(origins)


def _check_results(
    program: CompiledProgram,
    collective: Collective,
    values: Values,
    memory: dict[tuple[int, str], list[Held | None]],
) -> bool:
    """Check the postcondition. Returns True if all sums are in rank order. Raises PostconditionError."""
    fine, wrong, rank_order = program.refinement, [], True
    for rank, name, index, origins in _promised(collective):
        buffer, at = collective.alias(rank, name, index)
        for part in range(fine):
            where = f"{name}[{at * fine + part}] of rank {rank}"
            want = values.of([(source, chunk * fine + part) for source, chunk in origins])
            held = memory[rank, buffer][at * fine + part]
            if held is None or held.value != want:
                have = values.text(None if held is None else held.value)
                wrong.append(f"{where}: expected {values.text(want)}, got {have}")
            elif not program.uniform and held.size_class != at % collective.classes:
                wrong.append(f"{where} holds a chunk of another size")
            elif len(origins) > 1 and held.order != (0, program.ranks - 1):
                rank_order = False
    if wrong:
        raise PostconditionError(program.name, collective.name, wrong)
    return rank_order
