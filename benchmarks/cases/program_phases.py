"""The comparisons on slow links: one program with its phases as separate programs, and with other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from horocache.lang import AllToNext, Custom, Program, algorithms, chunk, compile_program
from horocache.lang.tuning.machine_model import Link, Machine

HOSTS, PER_HOST = 2, 4
RANKS = HOSTS * PER_HOST
Phase = tuple[Any, Callable[[int], int]]  # a compiled program, and its elements for a number of bytes per rank
Question = tuple[str, Machine, list[int], dict[str, list[Phase]]]

_INSIDE, _BETWEEN = Link(5, 2), Link(100, 0.2)
_BETWEEN_GAP = Link(100, 0.2, gap_us=25)  # a network card that is busy with each message for a quarter of the latency
_ALIKE = Link(100, 0.5)


def questions() -> Iterator[Question]:
    """Yield the paper's comparisons."""
    sizes = [1 << 10, 32 << 10, 1 << 20]
    flat = Machine(1, RANKS, _ALIKE, _ALIKE)
    pairs, ring = _whole(algorithms.all_pairs(RANKS)), _whole(algorithms.ring(RANKS))
    yield "all pairs or ring", flat, sizes, {"horocache, all_pairs": [pairs], "ring": [ring]}
    machine = Machine(HOSTS, PER_HOST, _INSIDE, _BETWEEN)
    whole = _whole(algorithms.hierarchical(HOSTS, PER_HOST))
    chained = [_whole(phase) for phase in _hierarchical_phases()]
    yield (
        "one program or a chain",
        machine,
        sizes,
        {
            "horocache, hierarchical": [whole],
            "chained collectives": chained,
            "flat ring": [ring],
        },
    )
    direct = _parts(algorithms.direct_alltoall(RANKS))
    two = _parts(algorithms.two_step_alltoall(HOSTS, PER_HOST))
    alltoalls = {"horocache, two steps": [two], "direct": [direct]}
    yield "alltoall", machine, [8 << 10, 256 << 10, 2 << 20], alltoalls
    gap = Machine(HOSTS, PER_HOST, _INSIDE, _BETWEEN_GAP)
    yield "alltoall, messages with a gap", gap, [8 << 10, 256 << 10, 2 << 20], alltoalls
    plain = _whole(_plain_to_next())
    split = _whole(algorithms.all_to_next(HOSTS, PER_HOST))
    for cards in (1, 2, 4):
        machine = Machine(HOSTS, PER_HOST, _INSIDE, _BETWEEN, cards)
        contestants = {"horocache, all_to_next": [split], "send and receive": [plain]}
        yield f"to the next rank, {cards} card{'s' * (cards > 1)}", machine, sizes, contestants


def _whole(program: Program) -> Phase:
    """Compile a program; its bytes are those of a rank's tensor."""
    return compile_program(program), lambda size: size // 4


def _parts(program: Program) -> Phase:
    """Compile a program; its bytes are those of all parts of a rank."""
    return compile_program(program), lambda size: size // 4 // RANKS


def _plain_to_next() -> Program:
    with Program("plain", AllToNext(RANKS)) as program:
        for rank in range(RANKS - 1):
            chunk(rank, "input", 0).copy(rank + 1, "output", 0)
    return program


def _hierarchical_phases() -> list[Program]:
    """Reduce-scatter within hosts, allreduce across hosts, allgather within hosts, as collectives called in turn."""
    owner = {index: index // HOSTS for index in range(RANKS)}  # the local rank that owns a chunk between the phases
    hosts = [[host * PER_HOST + local for local in range(PER_HOST)] for host in range(HOSTS)]
    across = [[host * PER_HOST + local for host in range(HOSTS)] for local in range(PER_HOST)]

    def phase(name: str, post: Callable[[int, int], Any]) -> Program:
        return Program(name, Custom(f"{name}_phase", RANKS, RANKS, RANKS, post, inplace=True, classes=RANKS))

    def own(rank: int, index: int) -> bool:
        return owner[index] == rank % PER_HOST

    first = phase("reduce_scatter", lambda r, i: [(o, i) for o in hosts[r // PER_HOST]] if own(r, i) else None)
    with first:
        for ranks in hosts:
            _ring_reduce(ranks, 0, HOSTS)
    second = phase("allreduce", lambda r, i: [(o, i) for o in across[r % PER_HOST]] if own(r, i) else None)
    with second:
        for local, ranks in enumerate(across):
            _ring_reduce(ranks, local * HOSTS, 1)
            _ring_gather(ranks, local * HOSTS, 1)
    third = phase("allgather", lambda r, i: [(r - r % PER_HOST + owner[i], i)])
    with third:
        for ranks in hosts:
            _ring_gather(ranks, 0, HOSTS)
    return [first, second, third]


def _ring_reduce(ranks: list[int], first: int, count: int) -> None:
    for step in range(len(ranks) - 1):
        for part in range(len(ranks)):
            source, target = (ranks[(part + ahead + step) % len(ranks)] for ahead in (1, 2))
            index = first + part * count
            chunk(target, "input", index, count).reduce(chunk(source, "input", index, count))


def _ring_gather(ranks: list[int], first: int, count: int) -> None:
    for step in range(len(ranks) - 1):
        for part in range(len(ranks)):
            source, target = (ranks[(part + ahead + step) % len(ranks)] for ahead in (0, 1))
            chunk(source, "input", first + part * count, count).copy(target, "input", first + part * count)
