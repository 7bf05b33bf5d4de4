"""Cost of a compiled program that does not depend on a machine: messages, data, thread blocks and steps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from horocache.lang.program.collective_spec import collective_of
from horocache.lang.program.compiled_program import CompiledProgram
from horocache.lang.program.instruction_dag import PUSHES
from horocache.lang.tuning.cost_model import Processor, predict
from horocache.lang.tuning.machine_model import Link, Machine

_NOTHING = Processor(step_us=0.0, gb_per_s=1e15)


@dataclass(frozen=True)
class Figures:
    """Cost of one program.

    Attributes:
        depth: messages on the longest chain of messages, which is the smallest number of latencies of a run.
        sent: the most data that a rank sends, as a multiple of a rank's input: its tensor for an allreduce, all its
            parts for an alltoall, its own part for an allgather.
        most_thread_blocks: largest number of thread blocks of a rank.
        most_steps: largest number of steps of a thread block.
    """

    depth: int
    sent: Fraction
    most_thread_blocks: int
    most_steps: int


def figures_of(program: CompiledProgram) -> Figures:
    """Compute the cost of a program."""
    collective = collective_of(program.collective, program.ranks)
    own = max(collective.input_chunks(rank) for rank in range(program.ranks)) * program.refinement
    sent = max(
        sum(step.count for thread_block in one.thread_blocks for step in thread_block.steps if step.op in PUSHES)
        for one in program.programs
    )
    link = Link(latency_us=1, gb_per_s=1e15)
    elements = collective.classes * program.refinement
    latencies = predict(program, elements, Machine(1, program.ranks, link, link), processor=_NOTHING)
    return Figures(
        depth=round(latencies),
        sent=Fraction(sent, max(own, 1)),
        most_thread_blocks=max(len(one.thread_blocks) for one in program.programs),
        most_steps=max(len(thread_block.steps) for one in program.programs for thread_block in one.thread_blocks),
    )
