"""A tuning run: plans jobs, runs them within the budget, and keeps what they have measured.

Note [How a job may end]
A job ends by itself when it has measured everything or its share of the budget is over. A job that is still there some
seconds later is ended. If a job fails, or is ended while a candidate runs for longer than the patience, this candidate
is taken for the reason: another job goes on without it for this operation and layout, and the table keeps the reason. A
layout whose jobs fail before any candidate runs, or three times, is given up, and the table keeps that, too.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

import msgspec

from horocache.errors import InvalidArgumentError
from horocache.launch.folders import temporary_folder
from horocache.tuning import jobs
from horocache.tuning.fingerprint import Fingerprint
from horocache.tuning.lookup import World
from horocache.tuning.plan import START_SECONDS, JobPlan, Unit, Wish
from horocache.tuning.records import PLAN_FILE, RECORDS_FILE, Began, Facts, Failed, Measured, Reader
from horocache.tuning.table import (
    MAX_TEXT,
    VERSION,
    Candidate,
    Failure,
    Layout,
    Measurements,
    Operation,
    Size,
    Table,
    save,
)

LATE_SECONDS = 2.0  # that a job may be late before it is ended
_GRACE_SECONDS = 3.0  # for the launcher to end its ranks
_SHORTEST_JOB_SECONDS = START_SECONDS + 1.0
_PATIENCE_SECONDS = 30.0  # after which an operation counts as stuck
_MOST_FAILURES = 3  # of the jobs of a layout

_Key = tuple[World, Unit]


@dataclass
class Collected:
    """The measurements of a run, and of the run that it resumes.

    Role: owned by the run; used by one thread.
    """

    sizes: dict[_Key, tuple[Candidate, ...]] = field(default_factory=dict)
    host_names: dict[World, tuple[str, ...]] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    failures: dict[World, str] = field(default_factory=dict)

    def why_without_times(self, backend: str) -> str | None:
        """Return why a backend, or a backend with an algorithm, was measured nowhere; None if it has a time."""
        named = [
            one
            for candidates in self.sizes.values()
            for one in candidates
            if backend in (one.name, one.name.partition("/")[0])
        ]
        if any(one.median_us is not None for one in named):
            return None
        return next((one.reason for one in named if one.reason), "no operation was measured by it")

    def table(
        self, version: str, host: Fingerprint, command: Sequence[str], overlap: int, backends: Sequence[str] = ()
    ) -> Table:
        """Return the table of the measurements."""
        by_op: dict[str, dict[World, list[Size]]] = defaultdict(lambda: defaultdict(list))
        for (world, unit), candidates in self.sizes.items():
            by_op[unit.op][world].append(Size(unit.bytes, candidates))
        operations = [
            Measurements(
                cast(Operation, op),
                tuple(
                    Layout(world.ranks, world.hosts, tuple(sizes), self.host_names.get(world, ()))
                    for world, sizes in layouts.items()
                ),
            )
            for op, layouts in by_op.items()
        ]
        return Table(
            "horocache.tuning",
            VERSION,
            horocache=version,
            host=host,
            libraries=self.libraries,
            when=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            command=tuple(command),
            overlap=overlap,
            backends=tuple(backends),
            operations=tuple(operations),
            failures=tuple(Failure(world.ranks, world.hosts, reason) for world, reason in self.failures.items()),
        )


def resumed(table: Table, version: str, host: Fingerprint, wish: Wish) -> Collected:
    """Return the measurements of a table to which those of a wish are to be added.

    Raises:
        InvalidArgumentError: they were made on another host, by another version, with another overlap, or of other
            backends: candidates of one size are compared only if they were measured together.
    """
    differences = host.differences(table.host)
    if table.horocache != version:
        differences.append(f"horocache {version}, not {table.horocache}")
    if table.overlap != wish.overlap:
        differences.append(f"--overlap {wish.overlap}, not {table.overlap}")
    if set(table.backends) != set(wish.backends):
        asked, had = (
            f"--backends {','.join(names)}" if names else "all backends" for names in (wish.backends, table.backends)
        )
        differences.append(f"{asked}, not {had}")
    if differences:
        raise InvalidArgumentError(
            f"its measurements cannot be compared with new ones: here is {'; '.join(differences)}. Leave --resume out "
            "to measure everything again."
        )
    collected = Collected(libraries=dict(table.libraries))
    for measurements in table.operations:
        for layout in measurements.layouts:
            world = World(layout.ranks, layout.hosts)
            collected.host_names[world] = layout.host_names
            for size in layout.sizes:
                collected.sizes[world, Unit(measurements.op, size.bytes)] = size.candidates
    return collected


@dataclass
class _Attempts:
    """The failed jobs of a layout: their reasons, and by operation the candidates that ended them, with the reason."""

    reasons: list[str] = field(default_factory=list)
    skipped: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))


class TuningRun:
    """Runs the jobs of a wish within a budget. After an exception, such as an interrupt, everything measured is kept.

    Role: owned by the command; used by the main thread alone.
    """

    def __init__(
        self,
        wish: Wish,
        collected: Collected,
        budget: float,
        keep: Callable[[Collected], None],
        progress: Callable[[World, int, int], None] = lambda *_: None,
        check_signals: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the run.

        Args:
            wish: what to measure.
            collected: what has been measured; the run adds to it.
            budget: seconds until the run ends.
            keep: called after each job that has measured something.
            progress: called with the layout that is measured, the number of units that are done, and of all.
            check_signals: called between jobs and every 50 ms; an exception of it ends the run.
        """
        self._wish = wish
        self._collected = collected
        self._deadline = time.monotonic() + budget
        self._keep = keep
        self._progress = progress
        self._check_signals = check_signals
        self._attempts: dict[World, _Attempts] = defaultdict(_Attempts)
        self._mpiexec = jobs.find_mpiexec() if any(map(wish.needs_mpiexec, wish.worlds)) else ""
        self._mpiexec_options = jobs.mpiexec_options(self._mpiexec) if self._mpiexec else []
        self._all = [(world, unit) for world, units in wish.stages() for unit in units]

    def missing(self) -> list[_Key]:
        """The units that are not measured yet, in their order."""
        return [key for key in self._all if key not in self._collected.sizes]

    def run(self) -> None:
        """Run jobs until everything is measured, the rest cannot be, or the budget is over."""
        for world in {world for world, _ in self.missing()}:
            self._collected.failures.pop(world, None)
        try:
            while self._run_stages():
                pass
        finally:
            for world in {world for world, _ in self.missing()}:
                if reasons := self._attempts[world].reasons:
                    self._collected.failures[world] = reasons[-1][:MAX_TEXT]
            self._keep(self._collected)

    def _run_stages(self) -> bool:
        """Run a job for each stage that is left; return True if another turn can measure more."""
        before = len(self.missing())
        stages = self._stages_left()
        for number, (world, units) in enumerate(stages):
            share = self._share(stages[number:])
            if share >= _SHORTEST_JOB_SECONDS and world not in self._collected.failures:
                self._run_stage(world, units, time.monotonic() + share)
        return 0 < len(self.missing()) < before

    def _stages_left(self) -> list[tuple[World, tuple[Unit, ...]]]:
        stages = []
        for world, units in self._wish.stages():
            left = tuple(unit for unit in units if (world, unit) not in self._collected.sizes)
            if left and world not in self._collected.failures:
                stages.append((world, left))
        return stages

    def _share(self, stages: Sequence[tuple[World, tuple[Unit, ...]]]) -> float:
        """The seconds for the first of the stages: its part of what is left, by estimated times."""

        def weight(world: World, units: Sequence[Unit]) -> float:
            return START_SECONDS + sum(self._wish.seconds_of(world, unit) for unit in units)

        weights = [weight(world, units) for world, units in stages if world not in self._collected.failures]
        left = self._deadline - time.monotonic()
        share = left * weight(*stages[0]) / max(sum(weights), 1e-9)
        return min(left, max(share, _SHORTEST_JOB_SECONDS))

    def _run_stage(self, world: World, units: Sequence[Unit], deadline: float) -> None:
        """Run jobs for units of a layout until they are measured, time is over, or the layout is given up."""
        attempts = self._attempts[world]
        while True:
            left = tuple(unit for unit in units if (world, unit) not in self._collected.sizes)
            if not left or deadline - time.monotonic() < _SHORTEST_JOB_SECONDS:
                return
            try:
                reason = self._run_job(world, left, deadline)
            finally:
                self._keep(self._collected)
            if not reason:
                return
            attempts.reasons.append(reason)
            if len(attempts.reasons) == _MOST_FAILURES or not any(attempts.skipped.values()):
                self._collected.failures[world] = reason[:MAX_TEXT]
                return

    def _run_job(self, world: World, units: tuple[Unit, ...], deadline: float) -> str:
        """Run one job; return the reason if it failed."""
        attempts = self._attempts[world]
        wish = self._wish
        plan = JobPlan(
            world.ranks,
            world.hosts,
            units,
            wish.backends,
            {op: tuple(names) for op, names in attempts.skipped.items()},
            wish.overlap,
            wish.repetitions,
            deadline,
            min(_PATIENCE_SECONDS, max(1.0, (deadline - time.monotonic()) / 4)),
        )
        with temporary_folder("horocache-run-") as folder:
            (folder / PLAN_FILE).write_bytes(msgspec.json.encode(plan))
            receiver = _Receiver(self._collected, world, attempts, Reader(folder / RECORDS_FILE))
            job = jobs.RunningJob(self._command(world, folder), folder / "output")
            try:
                ended = jobs.run_until_ended(job, deadline + LATE_SECONDS, lambda: self._receive(receiver, world))
            finally:
                job.stop(_GRACE_SECONDS)
                receiver.receive()
            self._receive(receiver, world)
            if not ended:
                return receiver.late(plan.patience)
            return receiver.blame(receiver.reason or job.reason()) if job.failed() else ""

    def _command(self, world: World, folder: Path) -> list[str]:
        program = jobs.worker_command(folder)
        if self._wish.needs_mpiexec(world):
            return jobs.mpiexec_command(self._mpiexec, self._mpiexec_options, world, program)
        return jobs.horocacherun_command(world, folder, program)

    def _receive(self, receiver: _Receiver, world: World) -> None:
        receiver.receive()
        self._check_signals()
        self._progress(world, len(self._all) - len(self.missing()), len(self._all))


class _Receiver:
    """Takes the records of one job over into the collected measurements."""

    def __init__(self, collected: Collected, world: World, attempts: _Attempts, reader: Reader) -> None:
        self.reason = ""
        self._collected = collected
        self._world = world
        self._attempts = attempts
        self._reader = reader
        self._running: Began | None = None
        self._running_since = 0.0  # CLOCK_MONOTONIC
        self._has_measured = False

    def receive(self) -> None:
        """Take the new records over."""
        for record in self._reader.new():
            if isinstance(record, Facts):
                self._collected.host_names[self._world] = record.host_names
                self._collected.libraries |= record.libraries
            elif isinstance(record, Began):
                self._running, self._running_since = record, time.monotonic()
            elif isinstance(record, Failed):
                self.reason = record.reason
            elif isinstance(record, Measured):
                self._running, self._has_measured = None, True
                skipped = self._attempts.skipped.get(record.op, {})
                reasons = tuple(Candidate(name, reason=reason) for name, reason in skipped.items())
                if candidates := record.candidates + reasons:
                    self._collected.sizes[self._world, Unit(record.op, record.bytes)] = candidates

    def late(self, patience: float) -> str:
        """Judge a job that had to be ended; return the reason if it failed, and not if it was only slow."""
        reason = "it was not over when its part of the budget was, and was ended"
        if self._running is not None and time.monotonic() - self._running_since >= patience:
            return self.blame(reason)
        return "" if self._has_measured else f"the job had measured nothing: {reason}"

    def blame(self, reason: str) -> str:
        """Skip the candidate that ran when the job failed, and return the reason with its name."""
        if self._running is None:
            return reason
        began = self._running
        text = f"{began.op} of {began.bytes} bytes by {began.candidate}: {reason}"[:MAX_TEXT]
        self._attempts.skipped[began.op][began.candidate] = text
        return text


def write(
    collected: Collected, path: Path, version: str, host: Fingerprint, command: Sequence[str], wish: Wish
) -> None:
    """Write the table of the measurements, if there are any. Raises OSError."""
    if collected.sizes:
        save(collected.table(version, host, command, wish.overlap, wish.backends), path)
