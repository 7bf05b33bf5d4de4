"""Compiled programs compared with the built-in algorithm and MPI, and with each other on slow links.

The first comparison runs on one host, through the daemon. The second one runs all ranks in one process with delays
between them, as two hosts are not available. It repeats the paper's comparisons (MSCCLang, section 7), which depend on
the links and not on this machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Series
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.report import Table, plain, size_label
from benchmarks.timing import Contestant, alternate, check

TITLE = "Collective programs"
BUILT_IN, MPI = "built-in", "mpi4py"
HOST, SHARED, PROTOCOLS, LINKS = "host", "shared", "protocols", "links"
_SIZES = [8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
_ALGORITHMS = ("ring", "all_pairs")
_UNTILED = "ring, untiled"
_WHOLE = 5 << 20  # bytes of the longest message


def jobs(quick: bool) -> list[Job]:
    """Ranks on one host, the same with shared tensors, protocols by size, and slow links."""
    sizes = _SIZES[::3] if quick else _SIZES
    budget_s = 0.3 if quick else 1.5
    return [
        *(Job("programs", ranks, {"what": HOST, "sizes": sizes, "budget_s": budget_s}, 200.0) for ranks in (2, 4)),
        Job("programs", 8, {"what": HOST, "sizes": [8, 1 << 10], "budget_s": budget_s}, 200.0),
        *(
            Job("programs", ranks, {"what": SHARED, "sizes": sizes[-3:], "budget_s": budget_s}, 200.0)
            for ranks in (2, 4)
        ),
        Job("programs", 2, {"what": PROTOCOLS, "sizes": [4**k for k in range(3, 10)], "budget_s": budget_s}, 200.0),
        Job("programs", 1, {"what": LINKS, "sizes": [], "budget_s": budget_s}, 240.0, own_launcher=True),
    ]


def measure(rank: Rank, what: str, sizes: list[int], budget_s: float) -> list[Series]:
    """Measure one of the four comparisons."""
    if not rank.has("horocache"):
        return []
    if what == LINKS:
        return _on_slow_links(repetitions=3 if budget_s < 1 else 7)
    programs = _protocols(rank.size) if what == PROTOCOLS else _algorithms(rank.size)
    folder = rank.directory / f"programs-{what}-{rank.size}"
    if rank.rank == 0:
        _save(folder, programs)
    rank.page.barrier()
    hvd = rank.horocache(programs=str(folder), inline_max=0)
    return list(_on_this_host(rank, hvd, what, list(programs), sizes, budget_s))


def _algorithms(ranks: int) -> dict[str, Any]:
    import msgspec

    from horocache.lang import algorithms, compile_program

    programs = {name: compile_program(getattr(algorithms, name)(ranks)) for name in _ALGORITHMS}
    return programs | {_UNTILED: msgspec.structs.replace(programs["ring"], tile=_WHOLE, slots=1)}


def _protocols(ranks: int) -> dict[str, Any]:
    import msgspec

    from horocache.lang import algorithms, compile_program

    pairs = compile_program(algorithms.all_pairs(ranks))
    return {protocol: msgspec.structs.replace(pairs, protocol=protocol) for protocol in ("Simple", "LL", "LL128")}


def _save(folder: Path, programs: dict[str, Any]) -> None:
    from horocache.lang import save_program

    folder.mkdir()
    for name, program in programs.items():
        save_program(program, folder / f"{_file(name)}.program.json")


def _file(name: str) -> str:
    return name.replace(", ", "-")


def _on_this_host(
    rank: Rank, hvd: Any, what: str, names: Sequence[str], sizes: Sequence[int], budget_s: float
) -> Iterator[Series]:
    for size in sizes:
        test = _Sum(rank, hvd, size, shared=what == SHARED)
        contestants = [
            test.contestant(f"horocache, {name}", test.allreduce(f"program/{_file(name)}")) for name in names
        ]
        if what != PROTOCOLS:
            contestants.append(test.contestant(BUILT_IN, test.allreduce("shm")))
            if what == HOST and rank.has(MPI):
                contestants.append(test.contestant(MPI, test.mpi()))
        check(rank.page, contestants)
        times = alternate(rank.page, contestants, repetitions=30, budget_s=budget_s)
        case = size_label(size) + {HOST: "", SHARED: " shared", PROTOCOLS: " by protocol"}[what]
        for impl, one in times.items():
            yield Series(case, impl, "us", one.seconds, detail={"bytes": size, "what": what})


class _Sum:
    """An allreduce in place of a tensor whose sums over the ranks are known."""

    def __init__(self, rank: Rank, hvd: Any, size: int, *, shared: bool) -> None:
        import torch

        self._hvd, self._size = hvd, size
        base = torch.arange(size // 4, dtype=torch.float32).remainder_(1021.0)
        self._pattern = base + rank.rank
        self._expected = base * rank.size + rank.size * (rank.size - 1) / 2
        self._tensor = hvd.empty_shared(base.numel()) if shared else torch.empty_like(base)

    def contestant(self, name: str, run: Callable[[], None]) -> Contestant:
        """Return a contestant that runs ``run`` on the tensor."""
        return Contestant(name, run, self._prepare, 20 if self._size < 1 << 16 else 1, self._wrong)

    def allreduce(self, backend: str) -> Callable[[], None]:
        """Return an allreduce on one of horocache's backends."""
        name = f"{backend} {self._size}"
        return lambda: self._hvd.allreduce_(self._tensor, name=name, op=self._hvd.Sum, backend=backend)

    def mpi(self) -> Callable[[], None]:
        """Return an allreduce by MPI."""
        from mpi4py import MPI as Library  # noqa: N811  (MPI is the contestant's name here)

        world, array = Library.COMM_WORLD, self._tensor.numpy()
        return lambda: world.Allreduce(Library.IN_PLACE, array)

    def _prepare(self) -> None:
        self._tensor.copy_(self._pattern)

    def _wrong(self) -> int:
        return int((self._tensor != self._expected).sum())


# ---- slow links ------------------------------------------------------------------------------------------------------


def _on_slow_links(repetitions: int) -> list[Series]:
    """Let all contestants of one question take turns; ``run_locally`` checks each result before it takes the time."""
    from benchmarks.cases.program_phases import questions

    series = []
    for question, machine, sizes, contestants in questions():
        for size in sizes:
            times: dict[str, list[float]] = {}
            for turn in range(repetitions + 1):
                for name, phases in contestants.items():
                    seconds = sum(_run(program, elements(size), machine) for program, elements in phases)
                    if turn > 0:  # the first one warms up
                        times.setdefault(name, []).append(seconds)
            detail = {"bytes": size, "what": LINKS}
            case = f"{question}: {size_label(size)}"
            series += [Series(case, name, "us", them, detail=detail) for name, them in times.items()]
    return series


def _run(program: Any, elements: int, machine: Any) -> float:
    from horocache.lang.tuning.local_run import run_locally

    return statistics.median(run_locally(program, elements, machine=machine, repetitions=1)) / 1e9


def tables(figures: Sequence[Figure]) -> list[Table]:
    """Return one table for each comparison that was measured."""
    found = []
    for what, title in (
        (HOST, f"{TITLE}: one allreduce in place, on this host"),
        (SHARED, f"{TITLE}: the same of tensors in memory that the ranks share"),
        (PROTOCOLS, f"{TITLE}: protocols of all pairs, by size"),
        (LINKS, f"{TITLE}: on slow links, all ranks in one process"),
    ):
        chosen = [figure for figure in figures if figure.detail["what"] == what]
        if chosen:
            found.append(plain(title, chosen))
    return found
