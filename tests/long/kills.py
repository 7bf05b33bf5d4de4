"""Kill a rank at a random moment, many times: every other rank names it in time, and nothing is left.

``python tests/long/kills.py PLACE`` with the interpreter of an environment that has horocache; PLACE is ``host``
(under horocacherun), ``mpi`` (one host, under mpiexec) or ``hosts`` (two hosts of two ranks, under mpiexec). KILLS says
how many, SEED which is the first: each has a seed of its own, so that ``KILLS=1 SEED=417`` repeats one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("kill_worker.py")
MARK = "HC_TEST_MARK"
RANKS = 4
START_S, END_S = 60.0, 30.0  # for a job to start, and to end after the kill
LIMITS_S = {"host": 1.0, "mpi": 1.0, "hosts": 5.0}
LAYOUTS = {"host": "", "mpi": "", "hosts": "0011"}


def marked(mark: str) -> list[int]:
    """Processes (zombies are not) whose environment has ``mark``."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_bytes().rpartition(b") ")[2][:1]
            if state not in (b"Z", b"X") and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def shared_memory() -> set[str]:
    """Files of ours; an MPI whose rank is killed leaves its own."""
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("horocache", "hc"))}


def command(place: str, folder: Path, seed: int) -> list[str]:
    rank = [sys.executable, str(WORKER), str(folder), str(seed), LAYOUTS[place]]
    if place == "host":
        return [sys.executable, "-m", "horocache.launch", "-np", str(RANKS), "--grace", "20", *rank]
    mpiexec = str(Path(sys.prefix) / "bin" / "mpiexec")
    # Or mpiexec ends the others before they can say what they have seen.
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--enable-recovery"]
    return [mpiexec, *options, "-n", str(RANKS), *rank]


class Kill:
    """One job, one kill. ``faults`` says what was wrong; ``seen_s`` when each survivor saw it."""

    def __init__(self, place: str, seed: int) -> None:
        self.place, self.seed = place, seed
        self.faults: list[str] = []
        self.seen_s: list[float] = []
        chance = random.Random(seed)
        self.victim = chance.randrange(RANKS)
        self.after_s = chance.random() * 0.3

    def run(self) -> None:
        scratch = Path(tempfile.mkdtemp(prefix="hckill", dir="/tmp"))
        before = shared_memory()
        mark = f"kill-{os.getpid()}-{self.seed}"
        (scratch / "tmp").mkdir()
        environment = {**os.environ, MARK: mark, "TMPDIR": str(scratch / "tmp"), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(REPOSITORY)
        with (scratch / "output").open("w") as output:
            job = subprocess.Popen(
                command(self.place, scratch, self.seed),
                stdout=output,
                stderr=output,
                env=environment,
                cwd=scratch,
                start_new_session=True,
            )
            try:
                self._kill(scratch, job)
            finally:
                self._check_nothing_left(scratch, job, mark, before)
        if self.faults:
            self.faults.append((scratch / "output").read_text(errors="backslashreplace")[-2000:])
        shutil.rmtree(scratch)

    def _kill(self, scratch: Path, job: subprocess.Popen[bytes]) -> None:
        ready = [scratch / f"ready{rank}" for rank in range(RANKS)]
        if not self._wait(ready, START_S, job):
            return
        time.sleep(self.after_s)
        os.kill(json.loads(ready[self.victim].read_text())["pid"], signal.SIGKILL)
        killed = time.monotonic()
        saw = {rank: scratch / f"saw{rank}" for rank in range(RANKS) if rank != self.victim}
        if not self._wait(list(saw.values()), END_S, None):
            return
        for rank, path in saw.items():
            seen = json.loads(path.read_text())
            self.seen_s.append(seen["at"] - killed)
            named = re.search(rf"\brank {self.victim} \(pid \d+ on [^;]*\) was killed by signal 9", seen["text"])
            if seen["kind"] != "PeerLostError" or not named:
                self.faults.append(f"rank {rank} saw {seen['kind']}: {seen['text']}")
            if self.seen_s[-1] > LIMITS_S[self.place]:
                self.faults.append(f"rank {rank} saw it after {self.seen_s[-1]:.2f} s: {seen['text']}")

    def _wait(self, files: list[Path], limit_s: float, job: subprocess.Popen[bytes] | None) -> bool:
        limit = time.monotonic() + limit_s
        while missing := [path.name for path in files if not path.exists()]:
            ended = job is not None and job.poll() is not None
            if ended or time.monotonic() > limit:
                self.faults.append(f"{'the job ended' if ended else f'after {limit_s} s'} without {missing}")
                return False
            time.sleep(0.005)
        return True

    def _check_nothing_left(self, scratch: Path, job: subprocess.Popen[bytes], mark: str, before: set[str]) -> None:
        try:
            job.wait(END_S)
        except subprocess.TimeoutExpired:
            self.faults.append(f"the launcher has not ended after {END_S} s")
            job.kill()
        limit = time.monotonic() + 5
        while (left := marked(mark)) and time.monotonic() < limit:
            time.sleep(0.02)
        if left:
            self.faults.append(f"processes {left} are left")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        files = [path for path in (scratch / "tmp").rglob("*") if self.place == "host" or "horocache" in path.name]
        # Start-up's folder of all jobs may stay, empty.
        names = [str(path.relative_to(scratch)) for path in files if path.name != f"horocache-{os.getuid()}"]
        if names:
            self.faults.append(f"files {names} are left")
        if new := shared_memory() - before:
            self.faults.append(f"shared memory {sorted(new)} is left")


def main() -> int:
    place = sys.argv[1]
    count, first = int(os.environ.get("KILLS", "300")), int(os.environ.get("SEED", "0"))
    began, failed, seen = time.monotonic(), [], []
    for seed in range(first, first + count):
        kill = Kill(place, seed)
        kill.run()
        seen += kill.seen_s
        if kill.faults:
            failed.append(seed)
            text = "\n  ".join(kill.faults)
            print(f"kill {seed} on {place}: rank {kill.victim} after {kill.after_s:.3f} s:\n  {text}", flush=True)
    seen.sort()
    times = f"seen after {seen[len(seen) // 2]:.3f} s (median), {seen[-1]:.3f} s (longest)" if seen else "never seen"
    print(
        f"{count} kills on {place} (seeds from {first}) in {time.monotonic() - began:.0f} s: {len(failed)} failed"
        f"{f' (seeds {failed})' if failed else ''}; {times}",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
