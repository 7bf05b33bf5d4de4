"""The autotuner: finds the fastest of many programs for each size, and writes them with their ranges of sizes."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from horocache.errors import InvalidArgumentError
from horocache.lang import algorithms
from horocache.lang.compiler.compiler import compile_program
from horocache.lang.formats.program_json import SUFFIX, save
from horocache.lang.frontend.trace import Program
from horocache.lang.program.compiled_program import CompiledProgram, Protocol
from horocache.lang.tuning.cost_model import predict
from horocache.lang.tuning.local_run import run_locally
from horocache.lang.tuning.machine_model import Machine

_ITEM_BYTES = 4  # of an element: candidates are timed with float32
_PROTOCOLS: tuple[Protocol, ...] = ("auto", "Simple", "LL", "LL128")
_TILES = (0, 32 << 10)  # bytes; 0: the runtime chooses
_LONGEST_LL_BYTES = 1 << 20  # largest operation for LL and LL128: above, flags cost more than they save
_BY_SIZE = ("allreduce", "broadcast", "reduce")


@dataclass(frozen=True)
class Candidate:
    """A program to measure.

    Attributes:
        name: name made of algorithm, instances, channels, protocol and tile; part of the name of its file.
        program: the verified program.
    """

    name: str
    program: CompiledProgram


@dataclass(frozen=True)
class Measured:
    """Measured or predicted time of a candidate for one size."""

    candidate: Candidate
    num_bytes: int
    microseconds: float


def library_of(collective: str, ranks: int, per_host: int | None) -> dict[str, Callable[..., Program]]:
    """The library's algorithms for an operation, by name; hierarchical ones only if ranks are on several hosts."""
    found: dict[str, Callable[..., Program]] = {}

    def flat(name: str) -> None:
        found[name] = lambda **options: getattr(algorithms, name)(ranks, **options)

    def by_host(name: str) -> None:
        if per_host is not None and 1 < per_host < ranks:
            found[name] = lambda **options: getattr(algorithms, name)(ranks // per_host, per_host, **options)

    if collective == "allreduce":
        for name in ("ring", "all_pairs", "binary_tree"):
            flat(name)
        if ranks & (ranks - 1) == 0:
            flat("halving_doubling")
        by_host("hierarchical")
    elif collective == "alltoall":
        flat("direct_alltoall")
        by_host("two_step_alltoall")
        by_host("three_step_alltoall")
    return found


def candidates_of(
    sources: dict[str, Callable[..., Program]],
    instances: Sequence[int],
    channels: Sequence[int] = (1,),
    protocols: Sequence[Protocol] = _PROTOCOLS,
) -> Iterator[Candidate]:
    """Compile and verify every algorithm with every number of instances and channels, protocol and tile.

    Numbers of channels that compile to the same program as an earlier number are left out.
    """
    for (name, write), number in itertools.product(sources.items(), instances):
        made: list[CompiledProgram] = []
        for spread in channels:
            compiled = compile_program(write(instances=number, channels=spread))
            if compiled in made:
                continue
            made.append(compiled)
            for protocol in protocols:
                for tile in _TILES if protocol in ("auto", "Simple") else (0,):
                    called = f"{name}-{number}x{spread}-{protocol}" + (f"-{tile >> 10}k" if tile else "")
                    yield Candidate(called, msgspec.structs.replace(compiled, protocol=protocol, tile=tile))


def measure(
    candidate: Candidate, num_bytes: int, repetitions: int, machine: Machine | None, simulate: bool
) -> Measured | None:
    """Check a candidate and time it.

    Args:
        candidate: the program to measure.
        num_bytes: bytes in one chunk of every class together: the whole tensor of an allreduce, one rank's part of an
            allgather.
        repetitions: number of timed runs; the median counts.
        machine: machine whose links the runs simulate; None: the links of this host.
        simulate: True to predict the time with the cost model for ``machine`` instead of a run.

    Returns:
        The measurement. None if the candidate cannot run on this size, if the size is too large for its protocol, or if
        the cost model does not know its protocol.
    """
    elements = max(1, num_bytes // _ITEM_BYTES)
    program = candidate.program
    if program.protocol in ("LL", "LL128") and num_bytes > _LONGEST_LL_BYTES:
        return None
    if simulate:
        assert machine is not None
        if program.protocol != "auto":
            return None  # the cost model does not distinguish protocols
        return Measured(candidate, num_bytes, predict(program, elements, machine))
    try:
        times = run_locally(program, elements, seed=1, machine=machine, repetitions=repetitions)
    except InvalidArgumentError:
        return None
    return Measured(candidate, num_bytes, statistics.median(times) / 1e3)


def choose(measured: Sequence[Measured], collective: str) -> list[CompiledProgram]:
    """Choose the fastest programs, with ranges of sizes that together cover all sizes.

    Between two adjacent sizes with different winners, the boundary is their geometric mean. An operation that cannot be
    chosen by size gets one program: the one whose mean slowdown against the best, over all sizes, is smallest.
    """
    sizes = sorted({one.num_bytes for one in measured})
    by_size = {size: [one for one in measured if one.num_bytes == size] for size in sizes}
    best = {size: min(them, key=lambda one: one.microseconds) for size, them in by_size.items()}
    if collective not in _BY_SIZE:
        return [_named(_least_slowdown(measured, best), 0, 0)]
    chosen: list[CompiledProgram] = []
    begin, winner = 0, best[sizes[0]].candidate
    for size, following in itertools.pairwise(sizes):
        if best[following].candidate.name != winner.name:
            edge = round(math.sqrt(size * following))
            chosen.append(_named(winner, begin, edge))
            begin, winner = edge, best[following].candidate
    return [*chosen, _named(winner, begin, 0)]


def _least_slowdown(measured: Sequence[Measured], best: dict[int, Measured]) -> Candidate:
    slowdowns: dict[str, list[float]] = {}
    candidates = {one.candidate.name: one.candidate for one in measured}
    for one in measured:
        slowdowns.setdefault(one.candidate.name, []).append(one.microseconds / best[one.num_bytes].microseconds)
    whole = {name: them for name, them in slowdowns.items() if len(them) == len(best)}
    return candidates[min(whole, key=lambda name: statistics.geometric_mean(whole[name]))]


def _named(candidate: Candidate, low: int, high: int) -> CompiledProgram:
    return msgspec.structs.replace(candidate.program, name=candidate.name, min_bytes=low, max_bytes=high)


def written_before(operation: str, ranks: int, folder: Path) -> dict[str, Path]:
    """The files that :func:`write` has written for an operation, by name. A list file beside them has their names.

    Raises:
        InvalidArgumentError: the folder has other programs for the operation, whose ranges of sizes may overlap with
            those of new programs.
    """
    kept = _list_of(operation, ranks, folder)
    own = set(kept.read_text().splitlines()) if kept.exists() else set()
    there = {path.name: path for path in kept.parent.glob(f"{operation}-{ranks}ranks-*{SUFFIX}")}
    if others := sorted(there.keys() - own):
        raise InvalidArgumentError(
            f"{kept.parent} has programs for {operation} that tune has not written: {', '.join(others)}. Move them "
            "away, or name another folder."
        )
    return there


def _list_of(operation: str, ranks: int, folder: Path) -> Path:
    return folder / f"{ranks}ranks" / f"{operation}.tuned"


def write(programs: Sequence[CompiledProgram], folder: Path) -> list[Path]:
    """Write programs to a subfolder for their number of ranks, where ``HOROCACHE_PROGRAMS=folder`` finds them.

    Replaces the files that earlier calls have written there for the same operation, so that ranges do not overlap.

    Raises:
        InvalidArgumentError: the subfolder has programs for the operation that no earlier call has written. No file has
            been changed.
    """
    ranks, operation = programs[0].ranks, programs[0].collective.name
    old = written_before(operation, ranks, folder)
    kept = _list_of(operation, ranks, folder)
    kept.parent.mkdir(parents=True, exist_ok=True)
    paths = [
        kept.parent / f"{operation}-{ranks}ranks-{program.min_bytes}-{program.name}{SUFFIX}" for program in programs
    ]
    # Written first, and with the old files: the list is complete even if this function is interrupted.
    kept.write_text("".join(f"{name}\n" for name in sorted(old.keys() | {path.name for path in paths})))
    for path in old.values():
        path.unlink()
    for program, path in zip(programs, paths, strict=True):
        save(program, path)
    return paths


def sizes_between(low: int, high: int, factor: int = 4) -> list[int]:
    """Sizes in bytes from ``low`` to ``high``, each ``factor`` times the size before."""
    sizes = []
    while low <= high:
        sizes.append(low)
        low *= factor
    return sizes


def table(measured: Sequence[Measured]) -> list[list[Any]]:
    """Times in microseconds by candidate and size: a header row, and a row for each candidate."""
    sizes = sorted({one.num_bytes for one in measured})
    rows: dict[str, dict[int, float]] = {}
    for one in measured:
        rows.setdefault(one.candidate.name, {})[one.num_bytes] = one.microseconds
    head = ["program", *(f"{size} B" for size in sizes)]
    return [head, *([name, *(times.get(size) for size in sizes)] for name, times in rows.items())]
