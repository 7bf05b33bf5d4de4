"""Random programs: any ranks, buffers, counts, channels, fragments and instances.

The collective specifies the result of running the operations one after the other.
"""

from __future__ import annotations

import contextlib
import random

from horocache.lang import Custom, Program, chunk, parallelize


def random_program(seed: int) -> Program:
    """Draw a program; the same seed gives the same program."""
    rng = random.Random(seed)
    ranks, inputs, outputs = rng.randint(2, 5), rng.randint(1, 4), rng.randint(1, 4)
    expected: dict[tuple[int, int], list[tuple[int, int]]] = {}
    inplace = rng.random() < 0.3
    collective = Custom(
        "random",
        ranks,
        inputs,
        outputs,
        lambda rank, index: expected.get((rank, index)),
        inplace=inplace,
        classes=rng.choice((1, 1, 2, 3)),
    )
    given = {"instances": rng.choice((1, 1, 1, 2, 3)), "fuse": rng.random() < 0.9, "channels": 1 + seed % 3}
    program = Program(f"random_{seed}", collective, **given)
    same_index = rng.random() < 0.5
    with program:
        for _ in range(rng.randint(1, 30)):
            with parallelize(rng.randint(2, 3)) if rng.random() < 0.15 else contextlib.nullcontext():
                _operate(program, rng, same_index)
    values = program.memory.values
    for rank in range(ranks):
        for index in range(outputs):
            buffer, at = collective.alias(rank, "output", index)
            value = program.memory.at(rank, buffer, at).value
            if value is not None:
                expected[rank, index] = [origin for origin, count in values.terms(value) for _ in range(count)]
    return program


def _operate(program: Program, rng: random.Random, same_index: bool) -> None:
    written = _written(program)
    rank, buffer, index = rng.choice(sorted(written))
    most = next(n for n in range(1, 5) if n == 4 or (rank, buffer, index + n) not in written)
    count = rng.randint(1, min(most, 3))
    source = chunk(rank, buffer, index, count)
    target_rank = rng.randrange(program.collective.num_ranks)
    placed = {"channel": rng.randrange(3)} if rng.random() < 0.2 and target_rank != rank else {}
    target_buffer = rng.choice(("input", "output", "scratch", "scratch2"))
    extent = program.extent(target_rank, target_buffer)
    last = 4 if extent is None else extent
    if last < count:
        return
    at = index if same_index and index + count <= last else rng.randint(0, last - count)
    there = program.place(target_rank, target_buffer, at, count, program.location)
    overlaps = (there.rank, there.buffer) == (source.rank, source.buffer) and abs(there.index - source.index) < count
    if overlaps:
        return
    reducible = all((target_rank, target_buffer, at + i) in written for i in range(count))
    if reducible and rng.random() < 0.6:
        chunk(target_rank, target_buffer, at, count).reduce(source, **placed)
    else:
        source.copy(target_rank, target_buffer, at, **placed)


def _written(program: Program) -> set[tuple[int, str, int]]:
    """The places that hold a value, by the names that a program may use."""
    found = set()
    for rank in range(program.collective.num_ranks):
        for buffer in ("input", "output", "scratch", "scratch2"):
            extent = program.extent(rank, buffer)
            for index in range(6 if extent is None else extent):
                name, at = program.collective.alias(rank, buffer, index)
                if program.memory.at(rank, name, at).value is not None:
                    found.add((rank, buffer, index))
    return found
