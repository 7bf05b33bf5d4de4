"""Random programs compile, and compute the written result in several interleavings and with several slots.

HC_TEST_PROGRAMS is the number of programs, and HC_TEST_FIRST_PROGRAM the number of the first one.
"""

from __future__ import annotations

import os
import random

import pytest
from msgspec.structs import replace

from horocache.lang import Custom, Program, chunk, compile_for_msccl, compile_program, verify
from horocache.lang.program.collective_spec import collective_of
from horocache.lang.tuning.local_run import run_locally

from .interpreter import execute, outputs_as_written
from .random_programs import random_program

PROGRAMS = int(os.environ.get("HC_TEST_PROGRAMS", "300"))
FIRST = int(os.environ.get("HC_TEST_FIRST_PROGRAM", "0"))
PART = 50


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, PART))
def test_compiled_random_programs_compute_the_written_result(first):
    for seed in range(first, min(first + PART, FIRST + PROGRAMS)):
        program = random_program(seed)
        compiled = compile_program(program)
        written = outputs_as_written(program, compiled.refinement)
        assert compiled.min_slots <= 8
        for slots in {compiled.min_slots, 2, 3, 8} - set(range(compiled.min_slots)):
            for order in range(3):
                got = execute(compiled, program.collective, slots, 1000 * seed + order)
                _check_outputs(program, compiled, written, got, f"program {seed}, {slots} slots, order {order}")
        _run_in_the_core(compiled, seed)


def _needs_two_slots_if_merged():
    """A program whose schedule has a cycle with one slot, and no merged step in that cycle."""
    with Program("small", Custom("any", 2, 4, 4, lambda rank, index: None)) as program:
        for (rank, index), (to, place), count in [
            ((1, 2), (0, 0), 1),
            ((0, 2), (1, 1), 2),
            ((0, 2), (1, 1), 1),
        ]:
            chunk(to, "input", place, count).reduce(chunk(rank, "input", index, count))
        for (rank, index), (to, place), count in [
            ((1, 3), (0, 3), 1),
            ((0, 3), (1, 3), 1),
            ((1, 3), (0, 3), 1),
            ((1, 1), (0, 1), 2),
        ]:
            chunk(rank, "input", index, count).copy(to, "input", place)
    return program


def test_programs_for_the_msccl_runtimes_run_with_any_number_of_slots():
    for seed in range(-1, 60):
        program = random_program(seed) if seed >= 0 else _needs_two_slots_if_merged()
        compiled = compile_for_msccl(program)
        assert compiled.min_slots == 1, f"program {seed}"
        for slots in range(1, 9):
            verify(replace(compiled, min_slots=slots), program.collective, at_once=True)


def _run_in_the_core(compiled, seed):
    """Run with every protocol, few or many elements, and a random order of the ranks."""
    rng = random.Random(seed)
    classes = collective_of(compiled.collective, compiled.ranks).classes
    for protocol in ("Simple", "LL", "LL128", "Direct"):
        elements = rng.choice((1, 2, 7, 50, 333, 1000))
        if compiled.uniform:
            elements = min(elements, 7) * classes * compiled.refinement * 64
        slots = rng.randint(compiled.min_slots, 8)
        tile = rng.choice((0, 64, 1000))
        run_locally(compiled, elements, "int64", seed=seed + 1, protocol=protocol, slots=slots, tile=tile)


def _check_outputs(program, compiled, written, got, where):
    collective, fine = program.collective, compiled.refinement
    for rank in range(compiled.ranks):
        for index in range(collective.output_chunks(rank)):
            buffer, at = collective.alias(rank, "output", index)
            for part in range(at * fine, (at + 1) * fine):
                want, have = (memory.get((rank, buffer), {}).get(part) for memory in (written, got))
                assert want == have, f"{where}: {buffer}[{part}] of rank {rank}"
