"""Kill a rank at a random moment, many times: every other rank names it in time, and the job leaves nothing behind.

``python tests/long/kills.py PLACE [start]`` with the interpreter of an environment that has horocache. PLACE is
``host`` (under horocacherun), ``mpi`` (one host, under mpiexec) or ``hosts`` (two hosts of two ranks, under mpiexec).
With ``start`` the rank dies about when it calls ``init()``, else while it works. KILLS is the number of kills, and SEED
the first seed. Each kill has its own seed, so that ``KILLS=1 SEED=417`` repeats one.
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
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))
from processes import MARK, kill_marked, marked, shared_memory_files  # noqa: E402

WORKER = Path(__file__).with_name("kill_worker.py")
RANKS = 4
START_S, END_S = 60.0, 30.0  # limits for a job to start, and to end after the kill
LIMITS_S = {"host": 1.0, "mpi": 1.0, "hosts": 5.0}
LAYOUTS = {"host": "", "mpi": "", "hosts": "0011"}
START_UPS_S = {"host": 0.6, "mpi": 2.0, "hosts": 2.0}  # approximate duration of imports and init() on two busy cores
START_TIMEOUT_S = 6
ROLL_CALL_S = 5  # added if a collective of MPI is late, which names no rank: 3 s, and 2 s for rank 0's answer
ENDED_BY_MPI = (
    "has waited for the other ranks for 6 s (HOROCACHE_START_TIMEOUT)",  # in MPI_Init
    "has waited in MPI for 6 s (HOROCACHE_START_TIMEOUT)",
    "has been in a call of MPI when",
    "MPI_ERRORS_ARE_FATAL",
)


def name_ranks(ranks: list[int]) -> str:
    """The ranks as the core's messages name them."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def described(pid: int) -> str:
    """The process's command and rank, and where each of its threads waits in the kernel."""
    process = Path("/proc") / str(pid)
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")[:3]
        variables = [line for line in (process / "environ").read_bytes().split(b"\0") if b"COMM_WORLD_RANK=" in line]
        threads = [
            (task / "comm").read_text().strip() + ":" + (task / "wchan").read_text() for task in process.glob("task/*")
        ]
    except OSError:
        return f"process {pid}, which has ended since"
    return f"process {pid} ({b' '.join(words + variables).decode(errors='backslashreplace')}; {', '.join(threads)})"


def command(place: str, folder: Path, seed: int) -> list[str]:
    rank = [sys.executable, str(WORKER), str(folder), str(seed), LAYOUTS[place]]
    if place == "host":
        return [sys.executable, "-m", "horocache.launch", "-np", str(RANKS), "--grace", "20", *rank]
    mpiexec = str(Path(sys.prefix) / "bin" / "mpiexec")
    # Without recovery, mpiexec ends the others before they can report what they have seen.
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--enable-recovery"]
    return [mpiexec, *options, "-n", str(RANKS), *rank]


class Kill:
    """One job and one kill. ``faults`` has all failures; ``seen_s`` has the time to each survivor's error."""

    def __init__(self, place: str, starting: bool, seed: int) -> None:
        self.place, self.starting, self.seed = place, starting, seed
        self.faults: list[str] = []
        self.seen_s: list[float] = []
        self.kinds: list[str] = []
        self.silent: list[int] = []  # ranks that ended without a report
        chance = random.Random(seed)
        self.victim = chance.randrange(RANKS)
        self.after_s = chance.random() * (START_UPS_S[place] if starting else 0.3)

    def run(self) -> None:
        scratch = Path(tempfile.mkdtemp(prefix="hckill", dir="/tmp"))
        before = shared_memory_files()
        mark = f"kill-{os.getpid()}-{self.seed}"
        (scratch / "tmp").mkdir()
        environment = {**os.environ, MARK: mark, "TMPDIR": str(scratch / "tmp"), "OMP_NUM_THREADS": "1"}
        environment |= {"PYTHONPATH": str(REPOSITORY), "HOROCACHE_START_TIMEOUT": str(START_TIMEOUT_S)}
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
                self._kill(scratch, job, mark)
            finally:
                self._check_nothing_left(scratch, job, mark, before)
        if self.faults:
            self.faults.append((scratch / "output").read_text(errors="backslashreplace")[-2000:])
        shutil.rmtree(scratch)

    def _kill(self, scratch: Path, job: subprocess.Popen[bytes], mark: str) -> None:
        ready = [scratch / f"{'starts' if self.starting else 'ready'}{rank}" for rank in range(RANKS)]
        if not self._wait([ready[self.victim]] if self.starting else ready, START_S, job):
            return
        time.sleep(self.after_s)
        os.kill(json.loads(ready[self.victim].read_text())["pid"], signal.SIGKILL)
        killed = time.monotonic()
        saw = {rank: scratch / f"saw{rank}" for rank in range(RANKS) if rank != self.victim}
        if self.starting and self.place != "host":
            # Within MPI_Init a rank cannot learn which rank died: MPI or the time limit ends the processes.
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(END_S)
            self._processes_left(mark)  # waits for them, as mpiexec ends first
            output = (scratch / "output").read_text(errors="backslashreplace")
            missing = [rank for rank, path in saw.items() if not path.exists()]
            if missing and not any(text in output for text in ENDED_BY_MPI):
                # Open MPI may silently end a process in MPI_Init when another one is lost; other ranks then miss it,
                # too.
                self.silent = missing
                if len(missing) == len(saw):
                    self.faults.append("no rank reports an error")
            self.kinds += ["silent end within MPI" if self.silent else "end within MPI"] * len(missing)
            saw = {rank: path for rank, path in saw.items() if rank not in missing}
        if self._wait(list(saw.values()), END_S, None):
            for rank, path in saw.items():
                self._check(rank, json.loads(path.read_text()), killed)

    def _check(self, rank: int, seen: dict[str, str | float], killed: float) -> None:
        kind, text = str(seen["kind"]), str(seen["text"])
        self.kinds.append(kind)
        # A rank that starts after the kill can notice it only from then on.
        self.seen_s.append(float(seen["at"]) - max(killed, float(seen["since"])))
        limit_s = LIMITS_S[self.place]
        if kind == "StartupError" and self.starting:
            lost = sorted([self.victim, *self.silent])
            named = re.search(rf"\b{name_ranks(lost)}\b", text)
            limit_s += START_TIMEOUT_S + (0 if self.place == "host" else ROLL_CALL_S)
            # Open MPI may also lose a rank's messages if another rank dies while it connects them.
            cut_off = re.search(r"\brank 0 of \d+ did not answer over MPI\b", text) if self.victim != 0 else None
            if cut_off:
                self.kinds[-1] = "cut off from rank 0"
            named = named or cut_off
        else:
            named = re.search(rf"\brank {self.victim} \(pid \d+ on [^;]*\) was killed by signal 9", text)
            named = named if kind == "PeerLostError" and not self.silent else None
        if not named:
            self.faults.append(f"rank {rank} saw {kind}: {text}")
        if self.seen_s[-1] > limit_s:
            self.faults.append(f"rank {rank} saw the loss after {self.seen_s[-1]:.2f} s: {text}")

    def _wait(self, files: list[Path], limit_s: float, job: subprocess.Popen[bytes] | None) -> bool:
        limit = time.monotonic() + limit_s
        while missing := [path.name for path in files if not path.exists()]:
            ended = job is not None and job.poll() is not None
            if ended or time.monotonic() > limit:
                self.faults.append(f"{'the job ended' if ended else f'after {limit_s} s'} without {missing}")
                return False
            time.sleep(0.005)
        return True

    def _processes_left(self, mark: str) -> list[int]:
        """The job's processes after some time to end: mpiexec may end before ranks that wait for others to start."""
        limit_s = 5 + (START_TIMEOUT_S + ROLL_CALL_S if self.starting and self.place != "host" else 0)
        limit = time.monotonic() + limit_s
        while (left := marked(mark)) and time.monotonic() < limit:
            time.sleep(0.02)
        return left

    def _check_nothing_left(self, scratch: Path, job: subprocess.Popen[bytes], mark: str, before: set[str]) -> None:
        try:
            job.wait(END_S)
        except subprocess.TimeoutExpired:
            self.faults.append(f"the launcher has not ended after {END_S} s")
            job.kill()
        if left := self._processes_left(mark):
            self.faults.append(f"left: {'; '.join(map(described, left))}")
            kill_marked(mark)
        files = [path for path in (scratch / "tmp").rglob("*") if self.place == "host" or "horocache" in path.name]
        # The start-up folder, which all jobs share, may stay, empty.
        names = [str(path.relative_to(scratch)) for path in files if path.name != f"horocache-{os.getuid()}"]
        if names:
            self.faults.append(f"files {names} are left")
        if new := shared_memory_files() - before:
            self.faults.append(f"shared memory {sorted(new)} is left")


def main() -> int:
    place, starting = sys.argv[1], sys.argv[2:] == ["start"]
    where = f"{place}{' at the start' if starting else ''}"
    count, first = int(os.environ.get("KILLS", "300")), int(os.environ.get("SEED", "0"))
    began, failed, seen = time.monotonic(), [], []
    kinds: Counter[str] = Counter()
    for seed in range(first, first + count):
        kill = Kill(place, starting, seed)
        kill.run()
        seen += kill.seen_s
        kinds.update(kill.kinds)
        if kill.faults:
            failed.append(seed)
            text = "\n  ".join(kill.faults)
            print(f"kill {seed} on {where}: rank {kill.victim} after {kill.after_s:.3f} s:\n  {text}", flush=True)
    seen.sort()
    times = f"seen after {seen[len(seen) // 2]:.3f} s (median), {seen[-1]:.3f} s (longest)" if seen else "never seen"
    print(
        f"{count} kills on {where} (seeds from {first}) in {time.monotonic() - began:.0f} s: {len(failed)} failed"
        f"{f' (seeds {failed})' if failed else ''}; {times}; {dict(kinds)}",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
