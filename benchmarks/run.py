"""Measure horocache against its peers: every case, alternated in the same processes; tables and JSONL in results/."""

from __future__ import annotations

import argparse
import datetime
import importlib
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import goals, machine, peers
from benchmarks.cases import ORDER
from benchmarks.figures import Figure, write_jsonl
from benchmarks.job import JobError, Launchers, find_launchers, run_job
from benchmarks.report import Table, plain


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; return 1 if a case could not be measured."""
    options = _parse(arguments)
    impls = frozenset(options.impl)
    launchers = find_launchers()
    about = machine.about() | {"time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    report = [_heading(about, launchers)]
    print(report[0], flush=True)
    figures: list[Figure] = []
    failures = []
    for name in options.only:
        begin = time.perf_counter()
        found, errors = _run_case(name, options.quick, launchers, impls)
        figures += found
        failures += errors
        text = [str(table) for table in _tables(name, found)]
        text += [f"FAILED {error}\n" for error in errors]
        text.append(f"({name}: {time.perf_counter() - begin:.0f} s; load average afterwards {machine.load():.1f})\n")
        report += text
        print("\n".join(text), flush=True)
    verdict = str(goals.judge(figures))
    print(verdict)
    _write(options.results, [*report, verdict], figures, about)
    return 1 if failures else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", type=_names(ORDER), default=list(ORDER), metavar="CASE,...", help=f"of {','.join(ORDER)}"
    )
    known = tuple(sorted(peers.ALL))
    parser.add_argument(
        "--impl", type=_names(known), default=list(known), metavar="IMPL,...", help=f"of {','.join(known)}"
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases and repetitions, about a minute")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where to write (results)")
    return parser.parse_args(arguments)


def _names(known: tuple[str, ...]) -> Any:
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name!r}; choose of {', '.join(known)}")
        return names

    return parse


def _run_case(name: str, quick: bool, launchers: Launchers, impls: frozenset[str]) -> tuple[list[Figure], list[str]]:
    case = importlib.import_module(f"benchmarks.cases.{name}")
    figures: list[Figure] = []
    errors = []
    for job in case.jobs(quick):
        if job.own_launcher and "horocache" not in impls:
            continue  # horocacherun starts these, which measure only horocache
        if job.needs_mpi and launchers.mpiexec is None:
            continue  # the heading says why MPI is missing
        try:
            figures += run_job(job, launchers, impls)
        except JobError as error:
            errors.append(f"{name}, {job.ranks} ranks, {job.parameters}: {error}")
    if hasattr(case, "local"):
        try:
            figures += case.local(quick, impls)
        except JobError as error:
            errors.append(f"{name}: {error}")
    return figures, errors


def _tables(name: str, figures: list[Figure]) -> list[Table]:
    case = importlib.import_module(f"benchmarks.cases.{name}")
    if not figures:
        return []
    if hasattr(case, "tables"):
        tables: list[Table] = case.tables(figures)
        return tables
    return [plain(case.TITLE, figures)]


def _heading(about: dict[str, Any], launchers: Launchers) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    started = (
        f"Ranks are started by {launchers.mpiexec}."
        if launchers.mpiexec
        else (f"No mpi4py column: {launchers.why_no_mpi}. Ranks are started by horocacherun.")
    )
    return (
        f"# horocache's speed, {about['time']}\n\n`{about['command']}`\n\n{about['cores']} cores ({about['cpu']}), "
        f"Linux {about['kernel']} {about['machine']}; {versions}. Load average before: {machine.load():.1f}.\n\n"
        f"{started} Contestants take turns in the same processes, each with one thread per rank for its arithmetic; "
        "per repetition the slowest rank counts.\n"
    )


def _write(folder: Path, report: list[str], figures: list[Figure], about: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stem = "bench-" + str(about["time"]).replace(":", "").split("+", 1)[0]
    (folder / f"{stem}.md").write_text("\n".join(report), encoding="utf-8")
    write_jsonl(folder / f"{stem}.jsonl", figures, about)
    print(f"written: {folder / stem}.md and .jsonl")


if __name__ == "__main__":
    sys.exit(main())
