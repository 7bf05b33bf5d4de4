"""The experiments of "MPI collectives in dependency DAGs" (Mamidala et al., 2018) on this machine.

Parts: ``model`` (a training loop whose device sleeps, in the paper's designs and by negotiation, against the durations
of a model), ``scaling`` (the same with more ranks), ``network`` (real networks, layer by layer and otherwise),
``store`` (what a key-value store costs over the daemon's calls), ``engine`` (empty operations), and ``control`` (MPI
called in the order of readiness, which mixes tensors or waits for ever). Each part writes JSONL to results/, most of
them a plot, and all their tables to one report.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import dag_report, experiments, mixed_report
from benchmarks.dag_model import DESIGNS, ROWS
from benchmarks.experiments import Experiments
from benchmarks.figures import Figure, Series, slowest
from benchmarks.job import ROOT, Job, JobError, Launchers, find_launchers, run_ranks
from benchmarks.networks import NETWORKS

ENGINE = ROOT / "build" / "dev" / "micro_dag_engine"
_LONGEST_S = 600.0  # of a job


@dataclass(frozen=True)
class Amounts:
    """How much is measured. Seconds are those of the runs, without start and checks."""

    rows: int = len(ROWS)  # of the model
    designs: tuple[str, ...] = tuple(design.name for design in DESIGNS)
    layers: int = 20
    steps: int = 6
    repetitions: int = 3
    row_s: float = 60.0  # of one row
    scaling: tuple[int, ...] = (2, 4, 8)
    networks: tuple[str, ...] = tuple(NETWORKS)
    width: float = 1.0
    batch: int = 4
    wires: tuple[tuple[int, tuple[float, ...]], ...] = ((2, (0.0, 1.0, 2.0)), (4, (0.0, 1.0)), (8, (0.0,)))  # by ranks
    network_steps: int = 6
    network_s: float = 20.0  # of one wire
    keys: tuple[int, ...] = (1, 10, 100)
    store_repetitions: int = 300
    store_s: float = 5.0  # of one number of keys
    operations: int = 1_000_000  # of the engine


QUICK = Amounts(
    rows=2,
    steps=4,
    repetitions=1,
    row_s=1.0,
    scaling=(2, 4),
    width=0.25,
    wires=((2, (0.0, 1.0)),),
    network_steps=2,
    network_s=1.0,
    store_s=0.5,
    operations=100_000,
)


class Runner:
    """Runs the parts one after the other.

    Role: owned by ``main``; used by one thread.

    Attributes:
        failures: what failed.
        left_out: parts that this machine cannot run, and why.
    """

    def __init__(self, amounts: Amounts, launchers: Launchers) -> None:
        self._amounts, self._launchers = amounts, launchers
        self.failures: list[str] = []
        self.left_out: dict[str, str] = {}

    def _figures(
        self, bench: str, ranks: int, parameters: dict[str, Any], impls: Sequence[str] = ("horocache",)
    ) -> list[Figure]:
        """Return the figures of one job, the slowest rank's; empty if it failed."""
        needs_mpi = "mpi4py" in impls
        job = Job(bench, ranks, parameters, timeout_s=_LONGEST_S, own_launcher=not needs_mpi, needs_mpi=needs_mpi)
        try:
            series = slowest(bench, run_ranks(job, self._launchers, frozenset(impls)))
        except JobError as error:
            self.failures.append(f"{bench}, {ranks} ranks: {error}")
            return []
        return mixed_report.compared(bench, ranks, series)

    def _steps(self, ranks: int, rows: list[dict[str, Any]]) -> list[Figure]:
        amounts = self._amounts
        return self._figures(
            "dag_steps",
            ranks,
            {
                "rows": [row | {"layers": amounts.layers} for row in rows],
                "designs": amounts.designs,
                "steps": amounts.steps,
                "repetitions": amounts.repetitions,
                "budget_s": amounts.row_s,
            },
        )

    def model(self) -> list[Figure]:
        """Measure the rows of the model with 2 ranks."""
        rows = [{"wire": row.wire, "copy": row.copy} for row in ROWS[: self._amounts.rows]]
        return self._steps(2, rows)

    def scaling(self) -> list[Figure]:
        """Measure more ranks. The wire's time grows as a ring's, where each sends 2 (n - 1) / n times the tensor."""
        figures = []
        for ranks in self._amounts.scaling:
            wire = ROWS[0].wire * 2 * (ranks - 1) / ranks
            figures += self._steps(ranks, [{"wire": wire, "copy": ROWS[0].copy}])
        return figures

    def network(self) -> list[Figure]:
        """Train real networks."""
        amounts, figures = self._amounts, []
        for network in amounts.networks:
            for ranks, wires in amounts.wires:
                parameters = {
                    "network": network,
                    "width": amounts.width,
                    "batch": amounts.batch,
                    "wires": wires,
                    "steps": amounts.network_steps,
                    "repetitions": 3 * amounts.repetitions,
                    "budget_s": amounts.network_s,
                }
                figures += self._figures("dag_network", ranks, parameters)
        return figures

    def store(self) -> list[Figure]:
        """Measure a store's cost."""
        amounts = self._amounts
        parameters = {
            "counts": amounts.keys,
            "elements": 1000,
            "repetitions": amounts.store_repetitions,
            "budget_s": amounts.store_s,
        }
        return self._figures("dag_store", 2, parameters)

    def engine(self) -> list[Figure]:
        """Measure empty operations."""
        if not ENGINE.exists():
            self.left_out["engine"] = "`make build` has not built it"
            return []
        command = [str(ENGINE), str(self._amounts.operations)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
        if ran.returncode:
            self.failures.append(f"engine: {ran.stderr.strip()}")
            return []
        series = []
        for line in map(json.loads, ran.stdout.splitlines()):
            way, ns = line.pop("way"), line.pop("ns")
            series.append(Series("an empty operation", way, "us", [each * 1e-9 for each in ns], detail=line))
        return mixed_report.compared("dag_engine", 1, series)

    def control(self) -> list[Figure]:
        """Call MPI in the order of readiness."""
        if self._launchers.mpiexec is None:
            self.left_out["control"] = self._launchers.why_no_mpi
            return []
        return self._figures("dag_control", 2, {}, ("horocache", "mpi4py"))


PARTS: dict[str, Callable[[Runner], list[Figure]]] = {
    "model": Runner.model,
    "scaling": Runner.scaling,
    "network": Runner.network,
    "store": Runner.store,
    "engine": Runner.engine,
    "control": Runner.control,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and write the results; return 1 if a job failed."""
    about = __doc__.split("\n", 1)[0] if __doc__ else ""
    options = experiments.parse(arguments, about, list(PARTS), "two minutes")
    runner = Runner(QUICK if options.quick else Amounts(), find_launchers())
    found = experiments.run_parts(PARTS, runner, options.parts)
    report = Experiments("dag", "Dependency graphs", dag_report.tables, dag_report.PLOTS)
    return report.write(found, runner.failures, runner.left_out, options.results)


if __name__ == "__main__":
    sys.exit(main())
