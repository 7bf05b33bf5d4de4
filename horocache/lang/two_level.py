"""The two-level alltoalls of a job: programs that the exchange ``hierarchical`` of mixtures of experts runs.

Programs belong to a job from its start. Jobs whose knob ``moe_exchange`` is ``hierarchical`` have these, for all ranks
and for process sets. They run only for operations that name them, so other alltoalls are as fast as before.
"""

from __future__ import annotations

import functools

from horocache.lang import algorithms
from horocache.lang.compiler.compiler import compile_program
from horocache.lang.program.compiled_program import CompiledProgram

__all__ = ["MOST_RANKS", "library", "program_name", "sizes"]

# Most ranks of a program. Its steps grow with the square of the ranks, and 64 take half a second to compile.
MOST_RANKS = 64
# All sets of at most this many ranks have programs. Larger sets have some if their size divides that of the job, like
# the size of expert-parallel groups.
_SMALL = 16


def program_name(groups: int, per_group: int) -> str:
    """Return the name of a program for rules and calls: ``backend="program/NAME"``."""
    return f"moe.two_level.{groups}x{per_group}"


def sizes(job_size: int) -> list[int]:
    """Return the numbers of ranks for which a job has programs, ascending; prime numbers cannot be divided.

    Example: a job of 24 ranks has programs for sets of 4, 6, 8, 9, 10, 12, 14, 15, 16 and 24.
    """
    most = min(job_size, MOST_RANKS)
    return [size for size in range(4, most + 1) if (size <= _SMALL or job_size % size == 0) and _divisors(size)]


def library(job_size: int) -> list[tuple[str, CompiledProgram]]:
    """Return the names and programs of a job: for each size all divisions into groups of equally many ranks."""
    return [
        (program_name(size // per_group, per_group), _compiled(size // per_group, per_group))
        for size in sizes(job_size)
        for per_group in _divisors(size)
    ]


def _divisors(size: int) -> list[int]:
    return [number for number in range(2, size // 2 + 1) if size % number == 0]


@functools.cache
def _compiled(groups: int, per_group: int) -> CompiledProgram:
    return compile_program(algorithms.two_step_alltoall(groups, per_group))
