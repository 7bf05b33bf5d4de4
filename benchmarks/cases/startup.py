"""Start-up: import, init, and the time from the launcher to the first collective."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.figures import Figure, Series, merge
from benchmarks.job import Job, run_command
from benchmarks.peers import Rank

TITLE = "Start-up"
_SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
_IMPORTS = {
    "horocache": "import horocache",
    "horocache with its core": "import horocache; from horocache import _core",
    "numpy": "import numpy",
    "torch": "import torch",
}


def jobs(quick: bool) -> list[Job]:
    """The duration of init()."""
    times = 5 if quick else 15
    return [Job("startup", ranks, {"times": times}, own_launcher=True) for ranks in ((2,) if quick else (2, 8))]


def measure(rank: Rank, times: int) -> list[Series]:
    """Time init() in step with the other ranks; the first call of a process loads the core."""
    import horocache as hc

    seconds = []
    for _ in range(times + 1):
        rank.page.barrier()
        begin = time.perf_counter()
        hc.init(**rank.identity())
        seconds.append(time.perf_counter() - begin)
        rank.page.barrier()
        hc.shutdown()
    return [
        Series("init, first in the process", "horocache", "s", seconds[:1]),
        Series("init, again", "horocache", "s", seconds[1:]),
    ]


def local(quick: bool, impls: frozenset[str]) -> list[Figure]:
    """Time imports in fresh interpreters, and launchers, alternated as all contestants are."""
    figures = _imports(3 if quick else 9) if "horocache" in impls else []
    return figures + _launchers(1 if quick else 5, impls)


def _imports(times: int) -> list[Figure]:
    seconds: dict[str, list[float]] = {name: [] for name in _IMPORTS}
    for _ in range(times):
        for name, statement in _IMPORTS.items():
            code = f"import time; begin = time.perf_counter(); {statement}; print(time.perf_counter() - begin)"
            seconds[name].append(float(run_command([sys.executable, "-c", code], 60.0)))
    # numpy and torch are shown for comparison: they are parts of a program's start, and not peers.
    series = [Series(f"import {name}", name.split()[0], "s", values) for name, values in seconds.items()]
    return merge("startup", 1, [series])


def _launchers(times: int, impls: frozenset[str]) -> list[Figure]:
    """Time from the start of the launcher's process until the last rank has the result of its first collective."""
    commands: dict[str, list[str]] = {}
    if "horocache" in impls:
        ours = [sys.executable, "-m", "horocache.launch", "-np", "2", "--no-prefix", sys.executable]
        commands["horocache, NumPy"] = [*ours, str(_SCRIPTS / "first_numpy.py")]
        commands["horocache, torch"] = [*ours, str(_SCRIPTS / "first_torch.py")]
    if "gloo" in impls:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        commands["torchrun, gloo"] = [*torchrun, str(_SCRIPTS / "first_gloo.py")]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for repetition in range(-1, times):  # the first repetition fills the file cache
        for name, command in commands.items():
            elapsed = _until_first(command)
            if repetition >= 0:
                seconds[name].append(elapsed)
    case = "launcher to first collective"
    return merge("startup", 2, [[Series(case, name, "s", values) for name, values in seconds.items()]])


def _until_first(command: list[str]) -> float:
    begin = time.monotonic()
    lines = run_command(command, 120.0).split()
    return max(float(line) for line in lines) - begin
