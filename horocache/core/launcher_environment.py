"""The environment variables that the launcher gives to each rank."""

import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from horocache.base.paths import is_file, is_folder

# Variables of an outer torchrun, which would make torch.distributed look for that job's store.
_FOREIGN = {"GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"}

# Without the prefix HOROCACHE_, as these are not knobs: an unknown variable with that prefix is an error.
_OUTER = "_HOROCACHE_OUTER_LAUNCHER"  # see cpp_core/net/bootstrap/launcher_environment.h
_RANK_PROCESS = "_HOROCACHE_RANK_PROCESS"


@dataclass(frozen=True)
class JobEnvironment:
    """The part of the environment that all ranks share."""

    base: Mapping[str, str]  # the launcher's own environment
    size: int
    job: str
    port: int
    directory: str  # the launcher's folder, in which ranks note why they failed
    meets_here: bool  # True if the start-up socket is there, too; False if the user chose another folder for it
    knobs: Mapping[str, str]  # from the command line
    threads: int | None  # value of OMP_NUM_THREADS; None: not set by the launcher
    packages: str = ""  # folder to put in front of PYTHONPATH; empty: none
    output_dir: str = ""  # parent of a folder for each rank's output; empty: none
    outer: str = ""  # _core.launcher_variables() of the environment that the ranks inherit

    def of_rank(self, rank: int) -> dict[str, str]:
        """Return the environment of rank ``rank``."""
        environment = inherited(self.base)
        environment[_OUTER] = self.outer
        environment.update({"HOROCACHE_" + knob.upper(): value for knob, value in self.knobs.items()})
        environment.update(self._identity(rank))
        environment["HOROCACHE_LAUNCHER_DIR"] = self.directory
        if self.meets_here:
            environment["HOROCACHE_RENDEZVOUS_DIR"] = self.directory
        if self.threads is not None:
            environment["OMP_NUM_THREADS"] = str(self.threads)
        if self.packages:
            environment["PYTHONPATH"] = python_path(self.packages, environment.get("PYTHONPATH"))
        folder = self.output_folder(rank)
        if folder is not None:
            environment.setdefault("HOROCACHE_FLIGHT_RECORD", str(folder))
        environment.setdefault("PYTHONUNBUFFERED", "1")  # else Python buffers the rank's output to a pipe
        return environment

    def output_folder(self, rank: int) -> Path | None:
        """Return the folder of a rank's output. Numbers are padded with zeros, so that the folders sort by rank."""
        width = len(str(self.size - 1))
        return Path(self.output_dir) / f"rank.{rank:0{width}}" if self.output_dir else None

    def _identity(self, rank: int) -> dict[str, str]:
        ours = {
            "RANK": rank,
            "SIZE": self.size,
            "LOCAL_RANK": rank,
            "LOCAL_SIZE": self.size,
            "CROSS_RANK": 0,
            "CROSS_SIZE": 1,
        }
        torchrun = {
            "RANK": rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": self.size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self.port,
        }
        # Programs also read the variables that horovodrun sets.
        names = {prefix + name: str(value) for name, value in ours.items() for prefix in ("HOROCACHE_", "HOROVOD_")}
        names |= {"HOROCACHE_JOB_ID": self.job, "HOROVOD_HOSTNAME": socket.gethostname()}
        return names | {name: str(value) for name, value in torchrun.items()}


def inherited(base: Mapping[str, str]) -> dict[str, str]:
    """Return the launcher's own variables, except those that would mislead a rank."""
    return {
        name: value
        for name, value in base.items()
        if not name.startswith("TORCHELASTIC_") and name not in (*_FOREIGN, _RANK_PROCESS)
    }


@dataclass(frozen=True)
class NotedRank:
    """A rank's process, as that process and its children find it in their environment."""

    pid: int
    started: str  # start time in /proc, which tells the process from a later one with the same pid
    rank: int
    size: int
    job: str

    def is_alive(self) -> bool:
        """True if that process still runs."""
        return self.started == start_of(self.pid) != ""


def note_rank_process(rank: int, size: int, job: str) -> None:
    """Note in the environment that this process is a rank, for the processes that it starts."""
    pid = os.getpid()
    os.environ[_RANK_PROCESS] = " ".join([str(pid), start_of(pid), str(rank), str(size), job])


def forget_rank_process() -> None:
    """Remove the note of :func:`note_rank_process`."""
    os.environ.pop(_RANK_PROCESS, None)


def noted_rank_process() -> NotedRank | None:
    """Return the rank that the environment notes, which is this process or an ancestor; None without a note."""
    found = os.environ.get(_RANK_PROCESS, "").split(" ", 4)
    if len(found) < 5 or not (found[0].isdecimal() and found[2].isdecimal() and found[3].isdecimal()):
        return None
    return NotedRank(int(found[0]), found[1], int(found[2]), int(found[3]), found[4])


def start_of(pid: int) -> str:
    """Return the start time of a process, as text from /proc; empty if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def own_environment() -> dict[str, str]:
    """Return a copy of this process's environment."""
    return dict(os.environ)


@contextmanager
def environment_with(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Return a context in which the variables have these values; a None leaves its variable unchanged."""
    values = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def python_path(folder: str, path: str | None) -> str:
    """Return a value of ``PYTHONPATH`` with ``folder`` in front; ``path`` is its present value, if any."""
    rest = [entry for entry in (path or "").split(os.pathsep) if entry and entry != folder]
    return os.pathsep.join([folder, *rest])


def put_on_python_path(folder: str) -> None:
    """Put ``folder`` in front of ``PYTHONPATH`` for the processes that this one starts."""
    os.environ["PYTHONPATH"] = python_path(folder, os.environ.get("PYTHONPATH"))


def new_job_id() -> str:
    """Return a random name for a job, which no other job has."""
    return secrets.token_hex(16)


def reserve_port() -> socket.socket:
    """Bind a free port of the loopback interface for torch.distributed's store.

    The socket never listens. While it is open, the kernel does not assign the port to a socket that asks for any free
    port. A listener that sets SO_REUSEADDR, as torch's store does, can still bind the port.
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def threads_per_rank(base: Mapping[str, str], usable_cores: int, ranks: int) -> int | None:
    """Return each rank's share of the cores, or None if the user has set ``OMP_NUM_THREADS``."""
    return None if "OMP_NUM_THREADS" in base else max(1, usable_cores // ranks)


def find_program(name: str, path: str | None) -> tuple[str | None, int]:
    """Look a command up as a shell does: the file and 0, or None and 127 (not found) or 126 (not executable)."""
    folders = [""] if "/" in name else (path or os.defpath).split(":")
    present = [file for folder in folders if is_file(file := Path(folder or ".") / name)]
    for file in present:
        if os.access(file, os.X_OK):
            return str(file.absolute()), 0
    return None, 126 if present or is_folder(Path(name)) else 127
