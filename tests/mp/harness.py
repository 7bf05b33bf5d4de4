"""Runs jobs through the launcher, each with a deadline, and checks that they leave nothing behind."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest
from processes import MARK, kill_marked, marked, shared_memory_files

WORKERS = Path(__file__).parent / "workers"
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Finished:
    """A finished job: its exit code, output and duration."""

    code: int
    out: bytes
    err: bytes
    seconds: float

    @property
    def stdout(self) -> str:
        return self.out.decode(errors="backslashreplace")

    @property
    def stderr(self) -> str:
        return self.err.decode(errors="backslashreplace")

    def of_rank(self, rank: int) -> list[str]:
        """The lines that the rank wrote to stdout."""
        prefix = f"[{rank}] "
        return [line.removeprefix(prefix) for line in self.stdout.splitlines() if line.startswith(prefix)]

    def reports_of(self, rank: int) -> "Reports":
        """Return the reports of the rank's worker (see workers/common.py), by their ``what``."""
        lines = [json.loads(line) for line in self.of_rank(rank) if line.startswith("{")]
        return Reports(self, rank, {line["what"]: line for line in lines})

    def report(self) -> str:
        return f"exit code {self.code} after {self.seconds:.1f} s\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


class Reports(dict[str, dict[str, object]]):
    """A rank's reports. A missing report fails the test with everything that the job wrote."""

    def __init__(self, finished: Finished, rank: int, reports: dict[str, dict[str, object]]) -> None:
        super().__init__(reports)
        self.finished = finished
        self.rank = rank

    def __missing__(self, what: str) -> NoReturn:
        pytest.fail(f"rank {self.rank} did not report {what!r}: {self.finished.report()}")


@dataclass
class Job:
    """A running horocacherun. Every process that it starts, except the guardian, has ``mark`` in its environment."""

    process: "subprocess.Popen[bytes]"
    mark: str
    scratch: Path
    began: float = field(default_factory=time.monotonic)
    read: bytes = b""  # its standard error, read by wait_for_errors

    def finish(self, deadline_s: float) -> Finished:
        try:
            out, err = self.process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            stacks = "".join(_stacks(pid) for pid in marked(self.mark))
            self.process.kill()
            kill_marked(self.mark)
            out, err = self.process.communicate(timeout=10)
            finished = Finished(self.process.returncode, out, self.read + err, time.monotonic() - self.began)
            pytest.fail(f"the job was not over after {deadline_s} s\n{finished.report()}\n{stacks}")
        return Finished(self.process.returncode, out, self.read + err, time.monotonic() - self.began)

    def wait_for_errors(self, enough: Callable[[str], bool], deadline_s: float = 20.0) -> None:
        """Read the job's standard error until ``enough`` accepts the text so far."""
        assert self.process.stderr is not None
        limit = time.monotonic() + deadline_s
        while not enough(self.read.decode(errors="replace")):
            ready, _, _ = select.select([self.process.stderr], [], [], max(0.0, limit - time.monotonic()))
            more = os.read(self.process.stderr.fileno(), 65536) if ready else b""
            if not more:
                self.process.kill()
                finished = self.finish(10)
                pytest.fail(f"the job wrote no error that the test waits for\n{finished.report()}")
            self.read += more

    def wait_for_file(self, name: str, deadline_s: float = 20.0) -> str:
        """Wait until a worker has written ``name`` in the scratch directory (whole, by rename); return the contents."""
        path = self.scratch / name
        limit = time.monotonic() + deadline_s
        while not path.exists():
            if time.monotonic() > limit or self.process.poll() is not None:
                self.process.kill()
                kill_marked(self.mark)
                out, err = self.process.communicate(timeout=10)
                finished = Finished(self.process.returncode, out, err, time.monotonic() - self.began)
                pytest.fail(f"no worker wrote {name}\n{finished.report()}")
            time.sleep(0.01)
        return path.read_text()


def guardians(launcher: int) -> list[int]:
    """The numbers of the launcher's guardian processes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                if arguments[-3:-1] == [b"for-launcher", str(launcher).encode()]:
                    found.append(int(entry.name))
    return found


def wait_until_gone(what: str, find: "object", deadline_s: float = 10.0) -> None:
    limit = time.monotonic() + deadline_s
    while left := find():  # type: ignore[operator]
        if time.monotonic() > limit:
            described = {pid: _command_of(pid) for pid in left}
            pytest.fail(f"{what} still there after {deadline_s} s: {described}")
        time.sleep(0.02)


class Launcher:
    """Starts jobs and, at the end of the test, checks that they left nothing behind."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        # Short, because the path of a Unix socket holds 108 bytes.
        self.scratch = Path(tempfile.mkdtemp(prefix="hcmp", dir="/tmp"))
        self.tmp = self.scratch / "tmp"
        self.tmp.mkdir()
        self.state = self.scratch / "state"
        self._shm_before = shared_memory_files()

    def start(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        module: str | None = "horocache.launch",
        stdin: int = subprocess.DEVNULL,
        cwd: Path | None = None,
    ) -> Job:
        mark = uuid.uuid4().hex
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HOROCACHE_", "HOROVOD_", "OMP_", "SLURM_", "PMI", "OMPI_"))
        }
        folders = [str(REPOSITORY), str(REPOSITORY / "tests"), environment.get("PYTHONPATH")]
        path = os.pathsep.join(filter(None, folders))
        environment |= {MARK: mark, "TMPDIR": str(self.tmp), "HC_TEST_SCRATCH": str(self.scratch), "PYTHONPATH": path}
        environment["XDG_STATE_HOME"] = str(self.state)
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.scratch / "inductor")  # torch leaves its cache
        environment |= env or {}
        process = subprocess.Popen(
            [*prefix, sys.executable, *(["-m", module] if module else []), *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=cwd or self.scratch,
            start_new_session=True,
        )
        job = Job(process, mark, self.scratch)
        self.jobs.append(job)
        return job

    def run(self, *arguments: str, deadline_s: float = 30.0, **keywords: object) -> Finished:
        return self.start(*arguments, **keywords).finish(deadline_s)  # type: ignore[arg-type]

    def worker(
        self, ranks: int, script: str, *arguments: str, flags: Sequence[str] = (), **keywords: object
    ) -> Finished:
        """Run a worker script of tests/mp/workers with ``ranks`` ranks."""
        return self.run(*worker_command(ranks, script, *arguments, flags=flags), **keywords)  # type: ignore[arg-type]

    def check_nothing_left(self) -> None:
        for job in self.jobs:
            wait_until_gone("processes of the job are", lambda mark=job.mark: marked(mark))
            wait_until_gone("the guardian is", lambda pid=job.process.pid: guardians(pid))
        # TensorFlow removes the modules that it writes there, but not the bytecode that Python caches for them.
        for bytecode in self.tmp.glob("__pycache__/__autograph_generated_file*.pyc"):
            bytecode.unlink()
        with contextlib.suppress(OSError):
            (self.tmp / "__pycache__").rmdir()  # fails if the folder is missing, or if it holds more
        left = sorted(str(path.relative_to(self.tmp)) for path in self.tmp.rglob("*") if not path.is_dir())
        left += sorted(path.name for path in self.tmp.iterdir() if path.name not in (f"horocache-{os.getuid()}",))
        assert not left, f"left in the temporary directory: {left}"
        assert shared_memory_files() <= self._shm_before, "left in /dev/shm"

    def close(self) -> None:
        for job in self.jobs:
            if job.process.poll() is None:
                job.process.kill()
            kill_marked(job.mark)
            job.process.wait(timeout=10)
            for pipe in (job.process.stdout, job.process.stderr, job.process.stdin):
                if pipe is not None:
                    pipe.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


def worker_command(ranks: int, script: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
    return ["-np", str(ranks), "--grace", "2", *flags, sys.executable, str(WORKERS / script), *arguments]


@contextlib.contextmanager
def launching() -> Iterator[Launcher]:
    launcher = Launcher()
    try:
        yield launcher
        launcher.check_nothing_left()
    finally:
        launcher.close()


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(gone)"


def _stacks(pid: int) -> str:
    """The kernel's view of a process that did not end: its command, state, and where each thread sleeps."""
    lines = [f"pid {pid}: {_command_of(pid)}"]
    with contextlib.suppress(OSError):
        for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):
                name = (task / "comm").read_text().strip()
                where = (task / "wchan").read_text()
                state = (task / "stat").read_text().rpartition(") ")[2][:1]
                lines.append(f"  thread {name}: state {state}, sleeps in {where}")
    if shutil.which("gdb"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            batch = ["gdb", "-p", str(pid), "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 12"]
            lines.append(subprocess.run(batch, capture_output=True, text=True, timeout=20, check=False).stdout[-6000:])
    return "\n".join(lines) + "\n"
