"""What a compiled program costs, in figures that need no machine: steps, bytes, strands."""

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
    """Of one program.

    Attributes:
        depth: messages that follow on each other, so how many latencies it takes at least.
        sent: the most that a rank sends, in its data: of an allreduce its tensor, of an alltoall all its parts, of an
            allgather its own part.
        most_strands: of a rank.
        most_steps: of a strand.
    """

    depth: int
    sent: Fraction
    most_strands: int
    most_steps: int


def figures_of(program: CompiledProgram) -> Figures:
    """Count them."""
    collective = collective_of(program.collective, program.ranks)
    own = max(collective.input_chunks(rank) for rank in range(program.ranks)) * program.refinement
    sent = max(
        sum(step.count for strand in one.strands for step in strand.steps if step.op in PUSHES)
        for one in program.programs
    )
    link = Link(latency_us=1, gb_per_s=1e15)
    elements = collective.classes * program.refinement
    latencies = predict(program, elements, Machine(1, program.ranks, link, link), processor=_NOTHING)
    return Figures(
        depth=round(latencies),
        sent=Fraction(sent, max(own, 1)),
        most_strands=max(len(one.strands) for one in program.programs),
        most_steps=max(len(strand.steps) for one in program.programs for strand in one.strands),
    )
