"""Measurement in the ranks: results are checked first, then sets of overlapped operations are timed in turns.

Note [How a candidate is timed]
A set is k operations of one kind and size, started one after the other and then awaited together, as a training step
has several operations in flight. Its time is from the first start to the end of the last wait, on the slowest rank. A
barrier precedes each set. The candidates take turns set by set, and each turn begins with another candidate, so that a
disturbance of the machine meets all of them. The median over the turns counts, and the distance between the quartiles
is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import horocache as hc
from horocache.base.untrusted_text import printable
from horocache.core import context
from horocache.tuning.operations import Prepared, prepare
from horocache.tuning.plan import FEWEST_TURNS, JobPlan, Unit
from horocache.tuning.table import MAX_TEXT, OPERATIONS, Candidate

Array = npt.NDArray[Any]

_LEFT_OUT = ("loopback", "nccl", "program")
_WARM_UPS = 2  # sets before the first that is timed: one that the ranks agree on anew, and one from the cache
# Errors after which the job cannot go on; any other error concerns the candidate alone.
_FATAL = (hc.PeerLostError, hc.ShutDownError, hc.AbortedError, hc.StallError, hc.NotInitializedError)


class StuckError(Exception):
    """An operation has not ended within the patience of the plan."""


@dataclass(frozen=True)
class JobBackend:
    """A backend of a job.

    Attributes:
        name: its name.
        algorithms: names of its algorithms; empty if it has only one.
        operations: names of the operations that it runs.
    """

    name: str
    algorithms: tuple[str, ...]
    operations: tuple[str, ...]

    def candidates(self) -> list[str]:
        """The names of its candidates: the backend with each of its algorithms, or by itself."""
        return [f"{self.name}/{name}" for name in self.algorithms] or [self.name]


def backends_of_job() -> list[JobBackend]:
    """Return the backends of the running job for tensors in the host's memory.

    Programs are left out: whether one may run an operation also depends on the element type.
    """
    known = context.current().runtime.backends(0)
    return [
        JobBackend(name, tuple(algorithms), tuple(op for op in operations if op in OPERATIONS))
        for name, algorithms, operations in known
        if name not in _LEFT_OUT
    ]


def candidates_of(op: str, backends: Sequence[JobBackend], wanted: Sequence[str]) -> tuple[list[str], list[Candidate]]:
    """Choose the candidates for an operation.

    Args:
        op: the operation.
        backends: the backends of the job.
        wanted: backends, or backends with an algorithm, that the user asks for; empty: all.

    Returns:
        The names to measure, and candidates that the job does not have, with the reason.
    """
    every = [(one, name) for one in backends for name in one.candidates()]
    known = {one.name for one in backends} | {name for _, name in every}
    absent = "the job does not have it; it has " + (", ".join(name for _, name in every) or "none")
    refused = [Candidate(name, reason=absent) for name in wanted if name not in known]
    names = []
    for one, name in every:
        if wanted and name not in wanted and one.name not in wanted:
            continue
        if op in one.operations:
            names.append(name)
        else:
            refused.append(Candidate(name, reason=f"{one.name} does not run {op}"))
    return names, refused


class Measurement:
    """Measures units on this rank, together with the other ranks.

    Role: owned by the worker; used by one thread. All ranks call the same methods with the same arguments.
    """

    def __init__(
        self, plan: JobPlan, backends: Sequence[JobBackend], began: Callable[[Unit, str], None] = lambda *_: None
    ) -> None:
        """Args: ``began`` is called before a candidate runs a unit for the first time."""
        self._plan = plan
        self._backends = backends
        self._began = began

    def measure(self, unit: Unit, seconds: float) -> tuple[Candidate, ...]:
        """Check and time all candidates of a unit.

        Args:
            unit: operation and size.
            seconds: how long the repetitions may take together; at least three are made.

        Raises:
            StuckError: an operation did not end. PeerLostError, ShutDownError, AbortedError, StallError: the job is
                lost.
        """
        names, refused = candidates_of(unit.op, self._backends, self._plan.backends)
        skipped = self._plan.skipped.get(unit.op, ())
        results = {one.name: one for one in refused}
        right = []
        for name in names:
            if name in skipped:
                continue
            self._began(unit, name)
            checked = self._check(unit, name)
            if checked is None:
                right.append(name)
            else:
                results[name] = checked
        if right:
            results |= self._time(unit, right, seconds)
        return tuple(results.values())

    def _check(self, unit: Unit, candidate: str) -> Candidate | None:
        """Run a set and check its results; return None if all ranks have right results."""
        prepared = [prepare(unit, index, values=True) for index in range(self._plan.overlap)]
        wrong, reason = 0, ""
        try:
            results = self._run_set(unit, candidate, prepared)
            wrong = sum(one.wrong(result) for one, result in zip(prepared, results, strict=True))
        except _FATAL:
            raise
        except hc.HorocacheError as error:
            reason = printable(f"{type(error).__name__}: {error}")[:MAX_TEXT]
        of_all = np.array([wrong, bool(reason)], np.int64)
        total, failed = self._over_ranks(unit, candidate, of_all, hc.Sum, "check")
        if failed:
            reasons = hc.allgather_object(reason, name="tune.reasons")
            return Candidate(candidate, reason=next(filter(None, reasons)))
        return Candidate(candidate, wrong=int(total)) if total else None

    def _over_ranks(self, unit: Unit, candidate: str, values: Array, op: int, name: str) -> Array:
        """Reduce values over the ranks.

        It waits for twice the patience: a rank that is stuck in an operation tells that first.
        """
        handle = hc.allreduce_async(values, op=op, name=f"tune.{name}.{values.size}")
        try:
            result: Array = hc.synchronize(handle, timeout=2 * self._plan.patience)
        except TimeoutError:
            self._began(unit, candidate)
            raise StuckError(
                f"rank {hc.rank()} waited {2 * self._plan.patience:.3g} s for another rank while it measured "
                f"{unit.op} of {unit.bytes} bytes by {candidate}"
            ) from None
        return result

    def _run_set(self, unit: Unit, candidate: str, prepared: Sequence[Prepared]) -> list[object]:
        handles: list[int] = []
        try:
            for index, one in enumerate(prepared):
                handles.append(one.start(f"tune.{unit.op}.{unit.bytes}.{candidate}.{index}", candidate))
        finally:
            # Also after an error: operations that were started before it end first.
            try:
                results = self._wait(unit, candidate, handles)
            except (StuckError, *_FATAL):
                self._began(unit, candidate)  # so that the command knows which candidate ended the job
                raise
        return results

    def _wait(self, unit: Unit, candidate: str, handles: list[int]) -> list[object]:
        try:
            results: list[object] = hc.synchronize(handles, timeout=self._plan.patience) if handles else []
        except TimeoutError:
            raise StuckError(
                f"{unit.op} of {unit.bytes} bytes by {candidate} did not end within {self._plan.patience:.3g} s "
                f"on rank {hc.rank()}"
            ) from None
        return results

    def _time(self, unit: Unit, candidates: Sequence[str], seconds: float) -> dict[str, Candidate]:
        prepared = [prepare(unit, index, values=False) for index in range(self._plan.overlap)]
        warm = [self._turn(unit, candidates, prepared, first=0) for _ in range(_WARM_UPS)]
        slowest = self._over_ranks(unit, candidates[-1], np.array(warm[-1]), hc.Max, "trial")
        turns = int(min(self._plan.repetitions, seconds / max(float(slowest.sum()), 1e-6)))
        mine = [self._turn(unit, candidates, prepared, first=turn) for turn in range(max(turns, FEWEST_TURNS))]
        times = self._over_ranks(unit, candidates[-1], np.array(mine), hc.Max, f"times.{len(mine)}") * 1e6
        low, median, high = np.percentile(times, [25, 50, 75], axis=0)
        return {
            name: Candidate(name, round(float(median[i]), 3), round(float(high[i] - low[i]), 3), len(mine))
            for i, name in enumerate(candidates)
        }

    def _turn(self, unit: Unit, candidates: Sequence[str], prepared: Sequence[Prepared], first: int) -> list[float]:
        """Run one set of each candidate, from number ``first`` on in a circle, and return this rank's seconds."""
        seconds = [0.0] * len(candidates)
        for step in range(len(candidates)):
            number = (first + step) % len(candidates)
            self._over_ranks(unit, candidates[number], np.zeros(1), hc.Sum, "barrier")
            began = time.perf_counter()
            self._run_set(unit, candidates[number], prepared)
            seconds[number] = time.perf_counter() - began
        return seconds
