"""The experiments of "MPI collectives in dependency DAGs" (Mamidala et al., 2018) on this machine.

Parts: ``model`` (a training loop whose device sleeps, in the paper's designs and by negotiation, against the durations
of a model) and ``store`` (what a key-value store costs over the daemon's calls). Each part writes JSONL and a plot to
results/, and its tables to one report.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import dag_report, machine, mixed_report
from benchmarks.dag_model import DESIGNS, ROWS
from benchmarks.figures import Figure, slowest, write_jsonl
from benchmarks.job import Job, JobError, Launchers, find_launchers, run_ranks

PARTS = ("model", "store")


def measure(options: argparse.Namespace, launchers: Launchers) -> tuple[dict[str, list[Figure]], list[str]]:
    """Run the parts; return the figures by part, and the failures."""
    found: dict[str, list[Figure]] = {}
    failures: list[str] = []
    quick = options.quick
    rows = [{key: value for key, value in asdict(row).items() if key in ("wire", "copy")} for row in ROWS]
    parts: dict[str, tuple[str, dict[str, Any], float]] = {
        "model": (
            "dag_steps",
            {
                "rows": rows[:2] if quick else rows,
                "designs": [design.name for design in DESIGNS],
                "steps": 4 if quick else 8,
                "repetitions": 1 if quick else 3,
                "budget_s": 1.0 if quick else 60.0,
            },
            900.0,
        ),
        "store": (
            "dag_store",
            {"counts": [1, 10, 100], "elements": 1000, "repetitions": 300, "budget_s": 0.5 if quick else 5.0},
            120.0,
        ),
    }
    for part in options.parts:
        bench, parameters, limit_s = parts[part]
        begin = time.perf_counter()
        try:
            ranks = run_ranks(Job(bench, 2, parameters, timeout_s=limit_s), launchers, frozenset({"horocache"}))
            found[part] = mixed_report.compared(bench, 2, slowest(bench, ranks))
        except JobError as error:
            failures.append(f"{part}: {error}")
        print(f"{part}: {time.perf_counter() - begin:.0f} s; load average {machine.load():.1f}", flush=True)
    return found, failures


_PLOTS: dict[str, Callable[[Sequence[Figure], Path], None]] = {"model": dag_report.plot_model}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and write the results; return 1 if a job failed."""
    options = parse(arguments)
    about = machine.about() | {"time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    options.results.mkdir(parents=True, exist_ok=True)
    stem = options.results.resolve() / ("dag-" + str(about["time"]).replace(":", "").split("+", 1)[0])
    found, failures = measure(options, find_launchers())
    report = "\n".join(
        [
            f"# Dependency graphs, {about['time']}\n\n`{about['command']}`\n\n{about['cores']} cores ({about['cpu']}); "
            "2 ranks on one host. Medians of the slowest rank.\n",
            *map(str, dag_report.tables(found)),
            *(f"\nFAILED {failure}\n" for failure in failures),
        ]
    )
    print(f"\n{report}")
    stem.with_suffix(".md").write_text(report, encoding="utf-8")
    for part, figures in found.items():
        write_jsonl(stem.with_name(f"{stem.name}-{part}.jsonl"), figures, about)
        if part in _PLOTS:
            _PLOTS[part](figures, stem.with_name(f"{stem.name}-{part}.png"))
    print(f"written: {stem.name}* in {options.results}")
    return 1 if failures else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="which to measure (all)")
    parser.add_argument("--quick", action="store_true", help="less of everything, about a minute")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where to write (results)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
