"""Where the time of one small blocking allreduce goes, from Python to Python.

Only calls that all ranks begin within 10 microseconds of each other count: a longer delay is the machine's, or the
other rank's. The stages come from the timeline, whose clock is that of Python's ``perf_counter``. The whole call is
also measured without a timeline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Series
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.report import Table, number

TITLE = "One small blocking allreduce, all ranks arriving within 10 us"
_TOGETHER_NS = 10_000
STAGES = ("Python, submission", "round", "data", "return, Python")
_Calls = list[tuple[int, int]]  # begin and end of each call, in ns


def jobs(quick: bool) -> list[Job]:
    """Two ranks: with more ranks than cores, a rank always has to wait for its turn."""
    calls = 300 if quick else 3000
    return [Job("stages", 2, {"elements": elements, "calls": calls}, own_launcher=True) for elements in (1, 256)]


def measure(rank: Rank, elements: int, calls: int) -> list[Series]:
    """Measure the whole call, then its stages."""
    import torch

    import horocache as hc

    hvd = rank.horocache()
    tensor = torch.zeros(elements)

    def run() -> None:
        hvd.allreduce_(tensor, name="stages", op=hvd.Sum)

    label = "4 B" if elements == 1 else f"{4 * elements} B"
    _times(rank, run, 50)
    whole = [end - begin for begin, end in _together(rank, _times(rank, run, calls))]
    path = rank.directory / "stages.json"
    hc.start_timeline(path)
    measured = _times(rank, run, calls)
    hc.stop_timeline()
    rank.page.barrier()
    kept = {begin for begin, _ in _together(rank, measured)}
    stages = [
        stages
        for call, stages in zip(measured, _stages(_own(path, rank.rank), measured), strict=True)
        if call[0] in kept
    ]
    series = [Series(f"{label}, whole call", "horocache", "us", [ns / 1e9 for ns in whole])]
    for number_of, stage in enumerate(STAGES):
        values = [times[number_of] / 1e9 for times in stages]
        series.append(Series(f"{label}, {stage}", "horocache", "us", values))
    return series


def _times(rank: Rank, run: Callable[[], None], calls: int) -> _Calls:
    measured = []
    for _ in range(calls):
        rank.page.barrier()
        begin = time.perf_counter_ns()
        run()
        measured.append((begin, time.perf_counter_ns()))
    return measured


def _together(rank: Rank, measured: _Calls) -> _Calls:
    """Return the calls that all ranks began within the limit."""
    (rank.directory / f"begins.{rank.rank}").write_text(json.dumps([begin for begin, _ in measured]))
    rank.page.barrier()
    begins = [json.loads((rank.directory / f"begins.{r}").read_text()) for r in range(rank.size)]
    rank.page.barrier()
    spread = [max(of_call) - min(of_call) for of_call in zip(*begins, strict=True)]
    return [call for call, apart in zip(measured, spread, strict=True) if apart <= _TOGETHER_NS]


def _own(path: Path, rank: int) -> Path:
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def _stages(path: Path, measured: _Calls) -> list[tuple[float, ...]]:
    """Return the nanoseconds of each stage of each call."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    negotiated = sorted((e["ts"], e["dur"]) for e in events if e.get("name") == "NEGOTIATE_ALLREDUCE")
    ran = sorted((e["ts"], e["dur"]) for e in events if e.get("name") == "ALLREDUCE")
    found: list[tuple[float, ...]] = []
    for (begin, end), (submitted, agreeing), (_, running) in zip(measured, negotiated, ran, strict=True):
        submission = submitted * 1e3 - begin
        rest = end - begin - submission - 1e3 * (agreeing + running)
        found.append((submission, 1e3 * agreeing, 1e3 * running, rest))
    return found


def tables(figures: Sequence[Figure]) -> list[Table]:
    """Return one row per stage."""
    rows = [[f.case, number(f.median), " .. ".join(number(edge) for edge in f.spread)] for f in figures]
    return [Table(TITLE, ["stage", "us", "quartiles"], rows)]
