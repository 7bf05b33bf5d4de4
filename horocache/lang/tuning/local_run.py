"""Runs programs with all their ranks in this process, to check, compare and time them.

Links and executor are those of a job on one host. No daemon takes part, so collectives that are not operations of a job
also run. Links can simulate slower links (:class:`~horocache.lang.tuning.machine_model.Machine`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horocache.lang.errors import ProgramError, UsageError
from horocache.lang.formats.core_words import PROTOCOLS, pack
from horocache.lang.frontend.collectives import INPUT, OUTPUT
from horocache.lang.program.chunk_layout import Sizes
from horocache.lang.program.collective_spec import collective_of
from horocache.lang.program.compiled_program import CompiledProgram, Protocol
from horocache.lang.tuning.machine_model import Machine

ITEM_BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint8": 1}  # of an element of each supported type
_SUM = 1  # wire::ReduceOp::kSum


class WrongResultError(ProgramError):
    """The result of a run violates the collective's postcondition, which is a defect of horocache."""


class _Memory:
    """Inputs and outputs of all ranks of a run."""

    def __init__(self, program: CompiledProgram, elements: int, dtype: str) -> None:
        self.collective = collective_of(program.collective, program.ranks)
        self.dtype = np.dtype(dtype)
        self.sizes = Sizes(elements, self.dtype.itemsize, self.collective.classes)
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        for rank in range(program.ranks):
            chunks = self.collective.buffers(rank)
            for name, arrays in ((INPUT, self.inputs), (OUTPUT, self.outputs)):
                arrays.append(np.zeros(self.sizes.offset(chunks.get(name, 0)), self.dtype))

    def at(self, rank: int, buffer: str, chunk: int) -> Any:
        """A chunk of a rank's input or output, as a view."""
        name, place = self.collective.alias(rank, buffer, chunk)
        array = (self.inputs if name == INPUT else self.outputs)[rank]
        begin = self.sizes.offset(place)
        return array[begin : begin + self.sizes.chunk(place % self.sizes.classes)]

    def fill(self, seed: int) -> dict[tuple[int, int], Any]:
        """Fill the inputs with random integers, whose sums are exact in any order; return each chunk by its origin."""
        rng = np.random.default_rng(seed)
        chunks = {}
        for rank in range(len(self.inputs)):
            for index in range(self.collective.input_chunks(rank)):
                place = self.at(rank, INPUT, index)
                place[:] = rng.integers(0, 3, place.shape).astype(self.dtype)
                chunks[rank, index] = place.copy()
        return chunks

    def compare(self, chunks: dict[tuple[int, int], Any]) -> int:
        """Check every output chunk, and return the number of compared elements. Raises WrongResultError."""
        compared = 0
        for rank in range(len(self.outputs)):
            for index in range(self.collective.output_chunks(rank)):
                origins = self.collective.expected(rank, index)
                if origins is None:
                    continue
                got = self.at(rank, OUTPUT, index)
                want = np.sum([chunks[origin] for origin in origins], axis=0).astype(self.dtype)
                if not np.array_equal(got, want):
                    at = int(np.flatnonzero(got != want)[0])
                    raise WrongResultError(
                        f"rank {rank}, output chunk {index}, element {at}: {got[at]} instead of {want[at]}."
                    )
                compared += got.size
        return compared


def run_locally(
    program: CompiledProgram,
    elements: int,
    dtype: str = "float32",
    *,
    seed: int = 0,
    protocol: Protocol | None = None,
    slots: int | None = None,
    tile: int | None = None,
    machine: Machine | None = None,
    repetitions: int = 0,
    patience_s: float = 30.0,
) -> list[int]:
    """Run a program once and check its results, then time it.

    Args:
        program: the program to run.
        elements: number of elements in one chunk of every class together: the whole tensor of an allreduce, one rank's
            part of an allgather.
        dtype: NumPy type of the elements.
        seed: seed of the data. In the checked run, 0 gives each rank its own thread. Any other seed runs all ranks on
            one thread, in an order that the seed determines.
        protocol: protocol instead of the program's.
        slots: number of slots instead of the program's.
        tile: largest message in bytes instead of the program's.
        machine: machine whose slower links are simulated; only in runs with a thread for each rank.
        repetitions: number of timed runs after the checked run; each rank has its own thread.
        patience_s: seconds after which a run with a thread for each rank counts as stuck.

    Returns:
        Time of each repetition in nanoseconds, from the first rank's start to the last rank's end.

    Raises:
        UsageError: the type is not supported.
        WrongResultError: the results are wrong.
        StallError: the program is stuck; the message names the position of each thread block.
        InvalidArgumentError: the program cannot run on this number of elements.
    """
    from horocache import _core  # noqa: PLC0415  (programs can be compiled without the core)

    if dtype not in ITEM_BYTES:
        raise UsageError(f"dtype={dtype!r}; programs run on {', '.join(ITEM_BYTES)} here.")
    memory = _Memory(program, elements, dtype)
    chunks = memory.fill(seed)
    ports, port_of = machine.ports() if machine is not None else ([], [])
    chosen = (
        PROTOCOLS.index(protocol or program.protocol),
        program.slots if slots is None else slots,
        program.tile if tile is None else tile,
    )
    packed = pack(program)

    def run(times: int, order: int) -> list[int]:
        place = (memory.inputs, memory.outputs, dtype, elements, _SUM)
        return _core.run_program(packed, *place, *chosen, times, order, patience_s, ports, port_of)

    run(1, seed)
    memory.compare(chunks)
    for array in (*memory.inputs, *memory.outputs):
        array[:] = 0  # sums in place would grow with each repetition
    return run(repetitions, 0) if repetitions > 0 else []
