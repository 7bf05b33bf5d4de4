"""The grid of the paper on caching and grouping (Romero et al., NSDI'22; its figures 2, 7 and 8), on this machine.

Framework x data plane x number of groups x cache x cycle mode: the gradients of a real model are reduced during an
imitated backward pass. Tables and JSONL go to results/.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import machine, paper_report
from benchmarks.architectures import MODELS
from benchmarks.cases.grid import LEFT_OUT
from benchmarks.figures import Series, slowest, write_jsonl
from benchmarks.job import Job, JobError, Launchers, find_launchers, run_ranks
from benchmarks.network import NoNamespacesError, SlowLink

FRAMEWORKS = ("torch", "numpy")
# One gigabit per second, and a delay with which a few messages take as long as a collective on a large machine.
_LINK = SlowLink(delay_s=1e-3, bytes_per_s=125e6)
_START_S = 60.0  # for the ranks to start and to finish a round


@dataclass(frozen=True)
class Plane:
    """A data plane. ``backend`` is the backend that implements it; ``select`` chooses it for all operations."""

    name: str
    backend: str
    about: str
    select: str = ""
    needs_mpi: bool = False
    link: SlowLink | None = None
    smaller: bool = False  # True: uses the gradients of a smaller model by default


PLANES = (
    Plane("shm", "shm", "shared memory", "allreduce=shm"),
    Plane("mpi", "mpi", "MPI inside one host", "allreduce=mpi", needs_mpi=True),
    Plane(
        "slow link",
        "mpi",
        f"two hosts (network namespaces), MPI over a link of {_LINK.delay_s * 1e3:g} ms and "
        f"{_LINK.bytes_per_s / 1e6:g} MB/s each way",
        needs_mpi=True,
        link=_LINK,
        smaller=True,
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid; return 1 if a job failed. A plane that this machine lacks is left out and is not a failure."""
    options = parse(arguments)
    about = machine.about() | {"time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    print(f"about {options.budget_s / 60:.0f} minutes", flush=True)
    outcome = run(options, find_launchers())
    figures = paper_report.to_figures(options.ranks, outcome.cells)
    text = [heading(about, options, outcome.left_out), *map(str, paper_report.tables(figures))]
    text += [f"FAILED {failure}\n" for failure in outcome.failures]
    report = "\n".join(text)
    print(f"\n{report}")
    options.results.mkdir(parents=True, exist_ok=True)
    stem = "paper-" + str(about["time"]).replace(":", "").split("+", 1)[0]
    (options.results / f"{stem}.md").write_text(report, encoding="utf-8")
    write_jsonl(options.results / f"{stem}.jsonl", figures, about)
    print(f"written: {options.results / stem}.md and .jsonl")
    return 1 if outcome.failures else 0


@dataclass
class Outcome:
    """The measured cells, the planes that this machine lacks, and the failed jobs."""

    cells: list[Series] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # plane -> reason
    failures: list[str] = field(default_factory=list)


def run(options: argparse.Namespace, launchers: Launchers) -> Outcome:
    outcome = Outcome()
    for plane, framework in itertools.product(options.planes, options.frameworks):
        if plane.name in outcome.left_out:
            continue
        begin = time.perf_counter()
        try:
            found = _cells(plane, job_of(framework, plane, options), launchers)
        except NotHereError as error:
            outcome.left_out[plane.name] = str(error)
        except JobError as error:
            outcome.failures.append(f"{framework}, {plane.name}: {error}")
        else:
            outcome.cells += found
            print(f"{framework}, {plane.name}: {time.perf_counter() - begin:.0f} s", flush=True)
    return outcome


class NotHereError(RuntimeError):
    """A data plane is not available on this machine; the text says why."""


def _cells(plane: Plane, job: Job, launchers: Launchers) -> list[Series]:
    """Return the cells that the ranks of one job measured.

    Raises:
        NotHereError: the plane is not available. JobError: the plane is available, and the job failed.
    """
    if plane.needs_mpi and launchers.mpiexec is None:
        raise NotHereError(launchers.why_no_mpi)
    if plane.link is not None and job.ranks % 2:
        raise NotHereError(f"two hosts cannot share {job.ranks} ranks equally")
    try:
        cells = slowest(job.bench, run_ranks(job, launchers, frozenset({"horocache"})))
    except JobError as error:
        if isinstance(error.__cause__, NoNamespacesError):
            raise NotHereError(str(error)) from error
        raise
    if cells[0].impl == LEFT_OUT:
        raise NotHereError(cells[0].detail["why"])
    return cells


def job_of(framework: str, plane: Plane, options: argparse.Namespace) -> Job:
    """Return the job that measures the cells of one framework and plane."""
    knobs = {"group_by": options.group_by}
    if plane.select:
        knobs["select"] = plane.select
    budget_s = options.budget_s / (len(options.planes) * len(options.frameworks))
    parameters = {
        "framework": framework,
        "plane": plane.name,
        "backend": plane.backend,
        "knobs": knobs,
        "model": _model(plane, options),
        "compute_ms": options.compute_ms,
        "groups": options.groups,
        "steps": options.steps,
        "budget_s": budget_s,
    }
    return Job(
        "grid",
        options.ranks,
        parameters,
        timeout_s=3 * budget_s + _START_S,
        own_launcher=not plane.needs_mpi,
        needs_mpi=plane.needs_mpi,
        link=plane.link,
    )


def _model(plane: Plane, options: argparse.Namespace) -> str:
    return str(options.model or ("EfficientNet-B0" if plane.smaller or options.quick else "ResNet-50"))


def heading(about: dict[str, Any], options: argparse.Namespace, left_out: dict[str, str]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    planes = [
        f"- {plane.name}: left out: {left_out[plane.name]}"
        if plane.name in left_out
        else f"- {plane.name}: {plane.about}; gradients of {_model(plane, options)}"
        for plane in options.planes
    ]
    return (
        f"# Caching and grouping, {about['time']}\n\n`{about['command']}`\n\n{about['cores']} cores ({about['cpu']}), "
        f"Linux {about['kernel']} {about['machine']}; {versions}. Load average afterwards: {machine.load():.1f}.\n\n"
        f"{options.ranks} ranks. A step is a backward pass of {options.compute_ms:g} ms, imitated by sleeping while "
        "gradients become ready one after the other, until all are averaged; the slowest rank counts. Groups are of "
        f"equal {options.group_by}. Planes:\n\n" + "\n".join(planes) + "\n"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    planes = {plane.name: plane for plane in PLANES}
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    parser.add_argument("--planes", nargs="+", choices=list(planes), default=list(planes))
    parser.add_argument("--groups", type=int, nargs="+", metavar="N", help="0 1 2 5 10 20, or --quick's 0 1 5")
    parser.add_argument("--ranks", type=int, default=2, metavar="N")
    parser.add_argument("--model", choices=list(MODELS), help="for all planes")
    parser.add_argument("--compute-ms", type=float, help="what the backward pass takes by itself (60, 30)")
    parser.add_argument("--group-by", choices=("bytes", "count"), default="bytes", help="count is the paper's way")
    parser.add_argument("--steps", type=int, help="per round, timed (3, 2)")
    parser.add_argument("--budget-s", type=float, help="for the whole grid (720, 90)")
    parser.add_argument("--quick", action="store_true", help="less of everything, about two minutes")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where to write (results)")
    options = parser.parse_args(arguments)
    options.planes = [planes[name] for name in options.planes]
    options.groups = sorted({0, *(options.groups or ((1, 5) if options.quick else (1, 2, 5, 10, 20)))})
    for name, usual, quick in (("budget_s", 720.0, 90.0), ("compute_ms", 60.0, 30.0), ("steps", 3, 2)):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else usual)
    if options.ranks < 2 or options.groups[0] < 0 or options.compute_ms < 0 or options.steps < 1:
        parser.error("--ranks must be at least 2, --groups and --compute-ms at least 0, --steps at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
