"""A simple program for each operation, for tests of the parts that run programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from horocache.lang import (
    AllGather,
    Broadcast,
    Buffer,
    Gather,
    Program,
    Reduce,
    ReduceScatter,
    Scatter,
    algorithms,
    chunk,
    compile_program,
    save_program,
)


def ring_allgather(ranks: int, **options: Any) -> Program:
    """Every part travels around the ring, in place."""
    with Program("ring_allgather", AllGather(ranks, inplace=True), **options) as program:
        for first in range(ranks):
            part = chunk(first, Buffer.input, 0)
            for step in range(1, ranks):
                part = part.copy((first + step) % ranks, Buffer.output, first)
    return program


def straight_reducescatter(ranks: int, **options: Any) -> Program:
    """Each owner adds up the ranks' values of its part, in ring order, beginning with its own."""
    with Program("straight_reducescatter", ReduceScatter(ranks), **options) as program:
        for owner in range(ranks):
            total = chunk(owner, Buffer.input, owner).copy(owner, Buffer.output, 0)
            for step in range(1, ranks):
                total = total.reduce(chunk((owner + step) % ranks, Buffer.input, owner))
    return program


def chain_broadcast(ranks: int, root: int = 0, **options: Any) -> Program:
    """Each rank passes the value to the next one; the root first copies it into its own output."""
    with Program("chain_broadcast", Broadcast(ranks, root=root), **options) as program:
        value = chunk(root, Buffer.input, 0)
        for step in range(ranks):
            value = value.copy((root + step) % ranks, Buffer.output, 0)
    return program


def chain_reduce(ranks: int, root: int = 0, **options: Any) -> Program:
    """Partial sums travel along the ranks to the root."""
    with Program("chain_reduce", Reduce(ranks, inplace=True, root=root), **options) as program:
        total = chunk((root + 1) % ranks, Buffer.input, 0)
        for step in range(2, ranks + 1):
            total = chunk((root + step) % ranks, Buffer.input, 0).reduce(total)
    return program


def star_gather(ranks: int, root: int = 0, **options: Any) -> Program:
    """Every rank copies its part to the root."""
    with Program("star_gather", Gather(ranks, root=root), **options) as program:
        for rank in range(ranks):
            chunk(rank, Buffer.input, 0).copy(root, Buffer.output, rank)
    return program


def star_scatter(ranks: int, root: int = 0, **options: Any) -> Program:
    """The root copies to every rank its part."""
    with Program("star_scatter", Scatter(ranks, root=root), **options) as program:
        for rank in range(ranks):
            chunk(root, Buffer.input, rank).copy(rank, Buffer.output, 0)
    return program


def for_every_operation(ranks: int) -> dict[str, Program]:
    """The programs by name; rooted operations once for rank 0 and once for the last rank."""
    programs = {
        "ring": algorithms.ring(ranks),
        "direct_alltoall": algorithms.direct_alltoall(ranks),
        "ring_allgather": ring_allgather(ranks),
        "straight_reducescatter": straight_reducescatter(ranks),
    }
    rooted: list[Callable[..., Program]] = [chain_broadcast, chain_reduce, star_gather, star_scatter]
    for write in rooted:
        for root in {0, ranks - 1}:
            programs[f"{write.__name__}_{root}"] = write(ranks, root=root)
    return programs


def save_for_every_operation(folder: Path, ranks: int) -> Path:
    """Compile the programs and save them in ``folder``; returns the folder."""
    folder.mkdir(exist_ok=True)
    for name, program in for_every_operation(ranks).items():
        save_program(compile_program(program), folder / f"{name}.program.json")
    return folder
