"""The cost of each gradient for the thread that computes it: horocache's hook, and the submission in it.

Times are taken in real training steps, from a hook before horocache's to one behind it. The processor time of that
thread excludes other work on its core. The number of instructions, counted if valgrind is installed, is the same on any
machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks import instructions
from benchmarks.cases.training import Trainee, horocache_trainee, plain_trainee
from benchmarks.figures import Figure, Series, merge
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.report import Table, number
from benchmarks.timing import Contestant, alternate

TITLE = "Hooks and submission, per parameter"
CPU, ELAPSED, COUNTED = "CPU us, mean", "elapsed us, median", "instructions"
_TIMERS = "the timers alone"
_GROUPS = [0, 5]


def jobs(quick: bool) -> list[Job]:
    """One job, with the model of many small tensors."""
    return [Job("hooks", 2, {"groups": _GROUPS, "budget_s": 3.0 if quick else 10.0}, own_launcher=True)]


class Stopwatch:
    """Two hooks for every parameter: one must be registered before horocache's hook, one after it.

    It belongs to one model, whose backward pass runs on one thread.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []  # mean processor time and median elapsed time of a hook, in seconds
        self._parameters: list[Any] = []
        self._cpu: list[int] = []
        self._elapsed: list[int] = []
        self._begun = (0, 0)

    def before(self, model: Any) -> None:
        """Register the first hooks."""
        self._parameters = list(model.parameters())
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._begin)

    def after(self) -> None:
        """Register the last hooks."""
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._end)

    def end_step(self) -> None:
        """Combine the times of the step."""
        if len(self._cpu) != len(self._parameters):
            raise AssertionError(f"{len(self._cpu)} of {len(self._parameters)} hooks were called")
        self.steps.append((statistics.fmean(self._cpu) * 1e-9, statistics.median(self._elapsed) * 1e-9))
        self._cpu.clear()
        self._elapsed.clear()

    def _begin(self, _: Any) -> None:
        self._begun = time.thread_time_ns(), time.perf_counter_ns()

    def _end(self, _: Any) -> None:
        elapsed, cpu = time.perf_counter_ns(), time.thread_time_ns()
        self._cpu.append(cpu - self._begun[0])
        self._elapsed.append(elapsed - self._begun[1])


def measure(rank: Rank, groups: list[int], budget_s: float) -> list[Series]:
    """Train a model for each number of groups, alternated with a model that has only the timers' hooks."""
    watches = {_TIMERS: Stopwatch()}
    watches |= {f"horocache, {number} groups" if number else "horocache": Stopwatch() for number in groups}
    trainees = [plain_trainee(rank, "mlp", 32, watches[_TIMERS].before)]
    trainees += [
        horocache_trainee(rank, "mlp", 32, number, watch.before)
        for number, watch in zip(groups, list(watches.values())[1:], strict=True)
    ]
    contestants = []
    for trainee, (name, watch) in zip(trainees, watches.items(), strict=True):
        watch.after()
        contestants.append(Contestant(name, partial(_step, trainee, watch)))
    repetitions = len(alternate(rank.page, contestants, repetitions=200, budget_s=budget_s, warm_up=5)[_TIMERS].seconds)
    alone = [statistics.median(values) for values in zip(*watches.pop(_TIMERS).steps[-repetitions:], strict=True)]
    return [
        Series(case, name, "us", [max(step[i] - alone[i], 0.0) for step in watch.steps[-repetitions:]])
        for name, watch in watches.items()
        for i, case in enumerate((CPU, ELAPSED))
    ]


def _step(trainee: Trainee, watch: Stopwatch) -> None:
    trainee.step()
    watch.end_step()


def local(quick: bool, impls: frozenset[str]) -> list[Figure]:
    """Return the instructions per hook, if they can be counted."""
    if quick or "horocache" not in impls or instructions.why_not():
        return []
    return merge("hooks", 1, [[Series(COUNTED, "horocache", "instructions", [instructions.per_hook()])]])


def tables(figures: Sequence[Figure]) -> list[Table]:
    """Return one row per implementation; instructions have a column if they were counted."""
    cases = [case for case in (CPU, ELAPSED, COUNTED) if any(figure.case == case for figure in figures)]
    found = {(figure.impl, figure.case): figure for figure in figures}
    rows = [
        [impl, *(_cell(found.get((impl, case))) for case in cases)]
        for impl in dict.fromkeys(figure.impl for figure in figures)
    ]
    note = (
        "MLP of 300 tensors, 2 ranks. CPU: of the thread that runs the backward pass, mean of a step's parameters; the "
        "median step, and the quartiles. Elapsed: of the median parameter. The timers' own time is taken off."
    )
    if COUNTED not in cases:
        note += f" No instructions: {instructions.why_not() or 'they are not counted with --quick'}."
    return [Table(TITLE, ["implementation", *cases], rows, note)]


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    spread = f" ({number(figure.spread[0])} .. {number(figure.spread[1])})" if figure.repetitions > 1 else ""
    return number(figure.median) + spread
