"""MCR-DL's experiments on this machine: the overhead of mixed backends, backend by operation and size, workloads.

Parts: ``overhead`` (mcr_dl against the daemon and the libraries), ``backends`` (a tuning table), ``auto`` (the choice
by the table against every fixed one), ``workloads`` (communication of training steps) and ``autotune`` (against a
grid). Each part writes JSONL and a plot to results/, and its tables to one report.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import goals, machine, mixed_plots, mixed_report, mixing, peers
from benchmarks.cases.hosts import LINK
from benchmarks.figures import Figure, Series, slowest, write_jsonl
from benchmarks.job import Job, JobError, Launchers, find_launchers, run_ranks
from benchmarks.network import NoNamespacesError, SlowLink
from benchmarks.workloads import WORKLOADS
from horocache.tuning.drawing import draw
from horocache.tuning.table import Table, load, save

PARTS = ("overhead", "backends", "auto", "workloads", "autotune")
_OPS = ("allreduce", "alltoall", "allgather")
_OVERLAP = 4  # operations of a set, as in horocache tune
_WARM_UP = (3, 1)  # steps of a workload on one host, and on two, where a step takes seconds
_AUTOTUNE_S = 120.0  # about the time of a grid, a search and the comparison
_START_S = 90.0  # for the ranks to start and to check results
_FEWEST_S = 240.0  # for the fewest repetitions on two hosts, whatever the budget is


@dataclass(frozen=True)
class Layout:
    """Ranks on hosts."""

    name: str
    ranks: int
    hosts: int
    link: SlowLink | None = None


LAYOUTS = (Layout("one host", 2, 1), Layout("2 x 2 hosts", 4, 2, LINK))


@dataclass(frozen=True)
class Amounts:
    """How much is measured. Seconds are those of the repetitions, without start and checks."""

    overhead_sizes: tuple[int, ...] = (8, 1 << 12, 1 << 20, 1 << 22)
    block_s: float = 4e-3  # of a loop of calls
    overhead_s: float = 1.0  # of an operation, backend and size
    sizes: tuple[int, ...] = (64, 1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 20, 1 << 22)  # of the table
    backends_s: float = 1.5  # of an operation and size
    repetitions: int = 20
    auto_sizes: tuple[int, ...] = (64, 1 << 12, 1 << 16, 1 << 19, 1 << 22)
    auto_s: float = 1.5  # of an operation and size on one host; on two hosts twice as long
    workload_s: float = 18.0  # of a workload on one host; on two hosts twice as long
    rounds: tuple[int, int] = (3, 2)  # on one host, and on two
    shrink: int = 1  # divides the sizes of workloads
    models: tuple[tuple[str, float], ...] = (("EfficientNet-B0", 20.0), ("ResNet-50", 30.0))  # and ms of computation
    grid: dict[str, list[Any]] = field(
        default_factory=lambda: {
            "num_groups": [1, 5, 20, 0],
            "fusion_threshold": [0, 4 << 20, 128 << 20],
            "cycle_time": [0.1, 1.0],
        }
    )
    samples: int = 40
    steps: int = 8
    finals: int = 6


QUICK = Amounts(
    overhead_sizes=(8, 1 << 20),
    block_s=1e-3,
    overhead_s=0.1,
    sizes=(64, 1 << 16, 1 << 20),
    backends_s=0.1,
    repetitions=5,
    auto_sizes=(64, 1 << 20),
    auto_s=0.1,
    workload_s=1.0,
    rounds=(1, 1),
    shrink=32,
    models=(("EfficientNet-B0", 5.0),),
    grid={"num_groups": [1, 5], "fusion_threshold": [0, 128 << 20]},
    samples=4,
    steps=3,
    finals=1,
)


@dataclass
class Outcome:
    """The results: figures by part, the tuning table, layouts that this machine lacks, and failed jobs."""

    figures: dict[str, list[Figure]] = field(default_factory=dict)
    table: Table | None = None
    left_out: dict[str, str] = field(default_factory=dict)  # layout -> reason
    failures: list[str] = field(default_factory=list)


class Runner:
    """Runs the parts one after the other.

    Role: owned by ``main``; used by one thread.
    """

    def __init__(self, options: argparse.Namespace, launchers: Launchers, stem: Path) -> None:
        self._options, self._launchers = options, launchers
        self._amounts: Amounts = QUICK if options.quick else Amounts()
        self._table_path = stem.with_name(f"{stem.name}-table.json")
        self._impls = peers.ALL
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Run all parts; failures of one do not stop the others."""
        parts: dict[str, Callable[[], list[Figure]]] = {
            "overhead": self._overhead,
            "backends": self._backends,
            "auto": self._auto,
            "workloads": self._workloads,
            "autotune": self._autotune,
        }
        if self._options.table is not None:
            self.outcome.table = load(self._options.table)
            self._table_path = self._options.table.resolve()
        for part, measure in parts.items():
            if part not in self._options.parts and not (part == "backends" and self._needs_table()):
                continue
            begin = time.perf_counter()
            self.outcome.figures[part] = measure()
            print(f"{part}: {time.perf_counter() - begin:.0f} s; load average {machine.load():.1f}", flush=True)
        return self.outcome

    def _needs_table(self) -> bool:
        return self.outcome.table is None and not {"auto", "workloads"}.isdisjoint(self._options.parts)

    def _layouts(self) -> Iterator[Layout]:
        for layout in self._options.layouts:
            if layout.link is not None and self._launchers.mpiexec is None:
                self.outcome.left_out[layout.name] = self._launchers.why_no_mpi
            if layout.name not in self.outcome.left_out:
                yield layout

    def _series(self, bench: str, layout: Layout, parameters: dict[str, Any], budget_s: float) -> list[Series]:
        """Return the series of one job, the slowest rank's; empty if it failed or the layout is not available."""
        job = Job(
            bench,
            layout.ranks,
            parameters,
            timeout_s=3 * budget_s + _START_S + (0.0 if layout.link is None else _FEWEST_S),
            needs_mpi=layout.link is not None,
            link=layout.link,
        )
        try:
            return slowest(bench, run_ranks(job, self._launchers, self._impls))
        except JobError as error:
            if isinstance(error.__cause__, NoNamespacesError):
                self.outcome.left_out[layout.name] = str(error)
            else:
                self.outcome.failures.append(f"{bench}, {layout.name}: {error}")
            return []

    # ---- parts

    def _overhead(self) -> list[Figure]:
        layout, amounts = LAYOUTS[0], self._amounts
        backends = ["shm", "mpi", "gloo"]
        parameters = {
            "sizes": list(amounts.overhead_sizes),
            "ops": ["allreduce", "alltoall"],
            "backends": backends,
            "block_s": amounts.block_s,
            "budget_s": amounts.overhead_s,
        }
        budget_s = 2 * len(backends) * len(amounts.overhead_sizes) * amounts.overhead_s
        series = self._series("mixed_overhead", layout, parameters, budget_s)
        return mixed_report.compared("mixed_overhead", layout.ranks, series)

    def _backends(self) -> list[Figure]:
        amounts, series = self._amounts, []
        for layout in self._layouts():
            parameters = {
                "ops": list(_OPS),
                "sizes": list(amounts.sizes),
                "overlap": _OVERLAP,
                "repetitions": amounts.repetitions,
                "seconds": amounts.backends_s,
            }
            budget_s = len(_OPS) * len(amounts.sizes) * amounts.backends_s
            series += self._series("mixed_backends", layout, parameters, budget_s)
        if series:
            self.outcome.table = mixing.table_of(series, sys.argv, _OVERLAP)
            save(self.outcome.table, self._table_path)
        return []

    def _auto(self) -> list[Figure]:
        amounts, figures = self._amounts, []
        for layout in self._tuned_layouts():
            parameters = {
                "ops": list(_OPS),
                "sizes": list(amounts.auto_sizes),
                "overlap": _OVERLAP,
                "table": str(self._table_path),
                "layout": layout.name,
                "budget_s": amounts.auto_s * layout.hosts,
            }
            budget_s = len(_OPS) * len(amounts.auto_sizes) * amounts.auto_s * layout.hosts
            series = self._series("mixed_auto", layout, parameters, budget_s)
            figures += mixed_report.compared("mixed_auto", layout.ranks, series)
        return figures

    def _workloads(self) -> list[Figure]:
        amounts, figures = self._amounts, []
        for layout in self._tuned_layouts():
            for workload in (WORKLOADS[name] for name in self._options.workloads):
                assert self.outcome.table is not None
                budget_s = amounts.workload_s * layout.hosts
                operations = workload.step(layout.ranks, amounts.shrink)
                parameters = {
                    "workload": workload.name,
                    "shrink": amounts.shrink,
                    "table": str(self._table_path),
                    "layout": layout.name,
                    "choices": mixing.choices(self.outcome.table, layout.ranks, layout.hosts, operations),
                    "rounds": amounts.rounds[layout.hosts > 1],
                    "warm_up": _WARM_UP[layout.hosts > 1],
                    "budget_s": budget_s,
                }
                series = self._series("mixed_workloads", layout, parameters, budget_s)
                figures += mixed_report.compared("mixed_workloads", layout.ranks, series)
        return figures

    def _tuned_layouts(self) -> Iterator[Layout]:
        """The layouts of which the tuning table has all operations."""
        table = self.outcome.table
        for layout in self._layouts():
            measured = table is not None and all(
                (layout.ranks, layout.hosts) in {(one.ranks, one.hosts) for one in table.layouts_of(op)} for op in _OPS
            )
            if measured:
                yield layout
            else:
                self.outcome.failures.append(f"{layout.name}: the tuning table lacks it")

    def _autotune(self) -> list[Figure]:
        layout, amounts, figures = LAYOUTS[0], self._amounts, []
        for model, compute_ms in amounts.models:
            parameters = {
                "model": model,
                "compute_ms": compute_ms,
                "grid": amounts.grid,
                "samples": amounts.samples,
                "steps": amounts.steps,
                "rounds": amounts.finals,
            }
            series = self._series("mixed_autotune", layout, parameters, _AUTOTUNE_S)
            figures += mixed_report.compared("mixed_autotune", layout.ranks, series)
        return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; return 1 if a job failed. A layout that this machine lacks is left out and is not a failure."""
    options = parse(arguments)
    about = machine.about() | {"time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    options.results.mkdir(parents=True, exist_ok=True)
    stem = options.results.resolve() / ("mixed-" + str(about["time"]).replace(":", "").split("+", 1)[0])
    launchers = find_launchers()
    outcome = Runner(options, launchers, stem).run()
    report = "\n".join([heading(about, launchers, outcome), *map(str, tables(outcome))])
    report += "".join(f"\nFAILED {failure}\n" for failure in outcome.failures)
    print(f"\n{report}")
    written = [stem.with_suffix(".md"), *_write(stem, outcome, about)]
    written[0].write_text(report, encoding="utf-8")
    print("written: " + ", ".join(path.name for path in written) + f" in {options.results}")
    return 1 if outcome.failures else 0


def tables(outcome: Outcome) -> list[Any]:
    """Return the report's tables."""
    figures = [figure for of_part in outcome.figures.values() for figure in of_part]
    found = mixed_report.tables(outcome.figures, outcome.table if "backends" in outcome.figures else None)
    return [*found, goals.judge(figures, goals.MIXED)]


def _write(stem: Path, outcome: Outcome, about: dict[str, Any]) -> list[Path]:
    """Write the JSONL and the plot of each part that has results; return their paths."""
    written = []
    for part, figures in outcome.figures.items():
        lines, plot = (stem.with_name(f"{stem.name}-{part}.{suffix}") for suffix in ("jsonl", "png"))
        if part == "backends" and outcome.table is not None:
            text = "".join(json.dumps(line) + "\n" for line in mixing.lines_of(outcome.table, about))
            lines.write_text(text, encoding="utf-8")
            draw(outcome.table, plot)
        elif figures:
            write_jsonl(lines, figures, about)
            mixed_plots.PLOTS[part](figures, plot)
        else:
            continue
        written += [lines, plot]
    return written


def heading(about: dict[str, Any], launchers: Launchers, outcome: Outcome) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    without = "" if launchers.mpiexec else f" MPI is missing: {launchers.why_no_mpi}."
    left_out = "".join(f"\n- {name}: left out: {why}" for name, why in outcome.left_out.items())
    return (
        f"# Mixed backends, {about['time']}\n\n`{about['command']}`\n\n{about['cores']} cores ({about['cpu']}), "
        f"Linux {about['kernel']} {about['machine']}; {versions}. Load average afterwards: {machine.load():.1f}."
        f"{without}\n\nOne host has {LAYOUTS[0].ranks} ranks; 2 x 2 hosts are network namespaces with two ranks each, "
        f"connected by a link of {LINK.delay_s * 1e6:g} us and {LINK.bytes_per_s / 1e6:g} MB/s each way. Contestants "
        f"take turns in the same processes; per repetition the slowest rank counts.\n{left_out}\n"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    layouts = {layout.name: layout for layout in LAYOUTS}
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="which to measure (all)")
    parser.add_argument("--layouts", nargs="+", choices=list(layouts), default=list(layouts), help="(all)")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), help="(all)")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="tuning table of an earlier run, in place of a new one"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, about two minutes")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where to write (results)")
    options = parser.parse_args(arguments)
    options.layouts = [layouts[name] for name in options.layouts]
    return options


if __name__ == "__main__":
    sys.exit(main())
