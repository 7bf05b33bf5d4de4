"""The program of experiments that consist of parts: runs them, and writes the report, JSONL and plots."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import machine
from benchmarks.figures import Figure, write_jsonl

Figures = dict[str, list[Figure]]
R = TypeVar("R")


@dataclass(frozen=True)
class Experiments:
    """Some experiments, and the report on them.

    Attributes:
        name: of the files, such as ``moe``.
        title: of the report.
        tables: make the report's tables of the figures by part.
        plots: by part: writes a plot of its figures.
    """

    name: str
    title: str
    tables: Callable[[Figures], Sequence[object]]
    plots: Mapping[str, Callable[[list[Figure], Path], None]]

    def write(self, figures: Figures, failures: Sequence[str], left_out: Mapping[str, str], results: Path) -> int:
        """Write everything to a folder, and the report also to the standard output.

        Args:
            figures: by part.
            failures: what failed.
            left_out: parts that this machine cannot run, and why.
            results: the folder.

        Returns:
            The exit code: 1 if something failed.
        """
        about = machine.about() | {"time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
        results.mkdir(parents=True, exist_ok=True)
        stem = results.resolve() / f"{self.name}-{str(about['time']).replace(':', '').split('+', 1)[0]}"
        report = "\n".join([_heading(self.title, about, left_out), *map(str, self.tables(figures))])
        report += "".join(f"\nFAILED {failure}\n" for failure in failures)
        print(f"\n{report}")
        stem.with_suffix(".md").write_text(report, encoding="utf-8")
        for part, of_part in figures.items():
            write_jsonl(stem.with_name(f"{stem.name}-{part}.jsonl"), of_part, about)
            if part in self.plots:
                self.plots[part](of_part, stem.with_name(f"{stem.name}-{part}.png"))
        print(f"written: {stem.name}* in {results}")
        return 1 if failures else 0


def run_parts(parts: Mapping[str, Callable[[R], list[Figure]]], runner: R, names: Sequence[str]) -> Figures:
    """Run parts with a runner; return the figures by part. Failures of one do not stop the others."""
    found = {}
    for name in names:
        begin = time.perf_counter()
        if figures := parts[name](runner):
            found[name] = figures
        print(f"{name}: {time.perf_counter() - begin:.0f} s; load average {machine.load():.1f}", flush=True)
    return found


def parse(arguments: Sequence[str] | None, about: str, parts: Sequence[str], quick: str) -> argparse.Namespace:
    """Return the options ``parts``, ``quick`` and ``results``.

    Args:
        arguments: of the command line; None: of this process.
        about: what the program does.
        parts: their names.
        quick: how long ``--quick`` takes.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="which to measure (all)")
    parser.add_argument("--quick", action="store_true", help=f"less of everything, {quick}")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where to write (results)")
    return parser.parse_args(arguments)


def _heading(title: str, about: Mapping[str, Any], left_out: Mapping[str, str]) -> str:
    missing = "".join(f"\n- {part}: left out: {why}" for part, why in left_out.items())
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"# {title}, {about['time']}\n\n`{about['command']}`\n\n{about['cores']} cores ({about['cpu']}), "
        f"Linux {about['kernel']} {about['machine']}; {versions}. Load average afterwards: {machine.load():.1f}.\n\n"
        "All ranks are on one host. Ways take turns in the same processes; per repetition the slowest rank counts.\n"
        f"{missing}\n"
    )
