"""Experiments on mixtures of experts on this machine, after "Aristos: Pipelining One-sided Communication in Distributed
Mixture of Experts" (Aimuyo).

Parts: ``layer`` (a layer by every exchange and by torch.distributed, with balanced and skewed routing, and what it
sends), ``overlap`` (ranks that come one after the other, and experts that sleep), ``straggler`` (ranks that come late
at random, and early exit), ``dispatch`` (bandwidth of windows), and ``training`` (a language model that loses tokens).
Each part writes JSONL to results/, most of them a plot, and all their tables to one report.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import experiments, mixed_report, moe_report
from benchmarks.cases.moe_straggler import pooled
from benchmarks.experiments import Experiments
from benchmarks.figures import Figure, Series, merge, slowest
from benchmarks.job import Job, JobError, Launchers, find_launchers, run_ranks
from benchmarks.moe_language import Size
from benchmarks.moe_setup import BALANCED, SKEWED, Shape

_LONGEST_S = 600.0  # of a job


@dataclass(frozen=True)
class Amounts:
    """How much is measured. Seconds are those of the runs, without start and checks."""

    shapes: tuple[Shape, ...] = (Shape(256, 256, 256), Shape(1024, 256, 512))
    routings: tuple[str, ...] = (BALANCED, SKEWED)
    ranks: tuple[int, ...] = (2, 4, 8)
    repetitions: int = 60
    layer_s: float = 8.0  # of one case
    overlap: Shape = field(default_factory=lambda: Shape(64, 8, 8))
    overlap_repetitions: int = 15
    stagger_s: float = 10e-3
    row_s: float = 0.2e-3
    straggler: Shape = field(default_factory=lambda: Shape(128, 128, 256))
    straggler_ranks: tuple[int, ...] = (4, 8)
    late: tuple[int, ...] = (0, 1, 2)
    calls: int = 150
    unit_s: float = 2e-3
    tau_s: float = 1e-3
    dispatch: tuple[int, ...] = (4 << 10, 64 << 10, 1 << 20)
    dispatch_ranks: tuple[int, ...] = (2, 4)
    dispatch_s: float = 3.0
    training: Size = field(default_factory=Size)
    training_ranks: int = 4
    training_exchanges: tuple[str, ...] = ("one_sided", "alltoall")
    fractions: tuple[float, ...] = (0.05, 0.2)


QUICK = Amounts(
    shapes=(Shape(64, 32, 32),),
    ranks=(2, 4),
    repetitions=10,
    layer_s=1.0,
    overlap_repetitions=3,
    straggler_ranks=(4,),
    late=(0, 1),
    calls=20,
    unit_s=0.2e-3,
    dispatch_ranks=(2,),
    dispatch_s=0.5,
    training=Size(context=16, hidden=16, heads=2, steps=20, batch=4),
)


class Runner:
    """Runs the parts one after the other.

    Role: owned by ``main``; used by one thread.

    Attributes:
        failures: what failed.
    """

    def __init__(self, amounts: Amounts, launchers: Launchers) -> None:
        self._amounts, self._launchers = amounts, launchers
        self.failures: list[str] = []

    def _series(self, bench: str, ranks: int, parameters: dict[str, Any], impls: Sequence[str]) -> list[list[Series]]:
        """Return the series of one job by rank; empty if it failed."""
        job = Job(bench, ranks, parameters, timeout_s=_LONGEST_S, own_launcher=True)
        try:
            return run_ranks(job, self._launchers, frozenset(impls))
        except JobError as error:
            self.failures.append(f"{bench}, {ranks} ranks: {error}")
            return []

    def _figures(
        self, bench: str, ranks: int, parameters: dict[str, Any], impls: Sequence[str] = ("horocache",)
    ) -> list[Figure]:
        """Return the figures of one job, those of the slowest rank; empty if it failed."""
        of_ranks = self._series(bench, ranks, parameters, impls)
        return mixed_report.compared(bench, ranks, slowest(bench, of_ranks)) if of_ranks else []

    def layer(self) -> list[Figure]:
        """Measure a layer."""
        amounts, figures = self._amounts, []
        for shape in amounts.shapes:
            for ranks in amounts.ranks:
                for routing in amounts.routings:
                    parameters = {
                        "shape": asdict(shape),
                        "routing": routing,
                        "repetitions": amounts.repetitions,
                        "budget_s": amounts.layer_s,
                    }
                    figures += self._figures("moe_layer", ranks, parameters, ("horocache", "gloo"))
        return figures

    def overlap(self) -> list[Figure]:
        """Measure ranks that come one after the other."""
        amounts, figures = self._amounts, []
        for ranks in amounts.ranks:
            parameters = {
                "shape": asdict(amounts.overlap),
                "stagger_s": amounts.stagger_s,
                "row_s": amounts.row_s,
                "repetitions": amounts.overlap_repetitions,
            }
            figures += self._figures("moe_overlap", ranks, parameters)
        return figures

    def straggler(self) -> list[Figure]:
        """Measure late ranks. The times of all ranks count, not those of the slowest alone."""
        amounts, figures = self._amounts, []
        for ranks in amounts.straggler_ranks:
            parameters = {
                "shape": asdict(amounts.straggler),
                "late": amounts.late,
                "calls": amounts.calls,
                "unit_s": amounts.unit_s,
                "tau_s": amounts.tau_s,
            }
            of_ranks = self._series("moe_straggler", ranks, parameters, ("horocache",))
            for series in pooled(of_ranks):
                [figure] = mixed_report.compared("moe_straggler", ranks, [series])
                figure.detail = {**series.detail, **moe_report.percentiles(series.values)}
                figures.append(figure)
        return figures

    def dispatch(self) -> list[Figure]:
        """Measure the bandwidth of windows."""
        amounts, figures = self._amounts, []
        for ranks in amounts.dispatch_ranks:
            parameters = {"sizes": amounts.dispatch, "repetitions": 200, "budget_s": amounts.dispatch_s}
            of_ranks = self._series("moe_dispatch", ranks, parameters, ("horocache",))
            figures += merge("moe_dispatch", ranks, of_ranks) if of_ranks else []
        return figures

    def training(self) -> list[Figure]:
        """Train the language model."""
        amounts = self._amounts
        parameters = {
            "size": asdict(amounts.training),
            "exchanges": amounts.training_exchanges,
            "fractions": amounts.fractions,
            "unit_s": amounts.unit_s,
            "tau_s": amounts.tau_s,
        }
        return self._figures("moe_training", amounts.training_ranks, parameters)


PARTS: dict[str, Callable[[Runner], list[Figure]]] = {
    "layer": Runner.layer,
    "overlap": Runner.overlap,
    "straggler": Runner.straggler,
    "dispatch": Runner.dispatch,
    "training": Runner.training,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and write the results; return 1 if a job failed."""
    about = __doc__.split("\n\n", 1)[0] if __doc__ else ""
    options = experiments.parse(arguments, about, list(PARTS), "one minute")
    runner = Runner(QUICK if options.quick else Amounts(), find_launchers())
    found = experiments.run_parts(PARTS, runner, options.parts)
    report = Experiments("moe", "Mixtures of experts", moe_report.tables, moe_report.PLOTS)
    return report.write(found, runner.failures, {}, options.results)


if __name__ == "__main__":
    sys.exit(main())
