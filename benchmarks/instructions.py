"""How many instructions the hooks of a backward pass execute, counted by valgrind: the same on a busy machine.

torch calls all hooks of a finished gradient from one C++ function. callgrind collects inside it alone, so a real
backward pass can be run; and a run of few steps is taken away from one of more, so that what the first steps do once
(names that are sent, Python that warms up) does not count.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.job import JobError, run_command

FEW, MORE = 2, 6  # steps
_CALLER = "torch::autograd::PyFunctionTensorPostAccGradHooks::operator()*"
_PROGRAM = Path(__file__).with_name("scripts") / "hooks.py"
_TIMEOUT_S = 900.0  # importing torch alone takes a minute and a half under valgrind


def why_not() -> str:
    """Why nothing can be counted here; empty if it can."""
    return "" if shutil.which("valgrind") else "there is no valgrind (Debian: apt-get install valgrind)"


def per_hook() -> float:
    """Instructions per parameter of one backward pass, in the thread that runs it.

    Raises:
        JobError: valgrind failed, or found no hook.
    """
    with tempfile.TemporaryDirectory(prefix="horocache-bench-") as name, ThreadPoolExecutor(2) as pool:
        (parameters, few), (_, more) = pool.map(lambda steps: _counted(Path(name), steps), (FEW, MORE))
    return (more - few) / (MORE - FEW) / parameters


def _counted(folder: Path, steps: int) -> tuple[int, int]:
    """Number of parameters, and instructions of all their hooks in so many steps."""
    path = folder / f"{steps}.callgrind"
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={path}", "--collect-atstart=no"]
    command = [*valgrind, f"--toggle-collect={_CALLER}", sys.executable, str(_PROGRAM), str(steps)]
    printed = run_command(command, _TIMEOUT_S, {"PYTHONHASHSEED": "0", "HOROCACHE_RANK": "0", "HOROCACHE_SIZE": "1"})
    instructions = total(path.read_text(encoding="utf-8"))
    if instructions == 0:
        raise JobError(f"valgrind saw no call of {_CALLER}; {os.fspath(sys.executable)}'s torch calls hooks elsewhere")
    return int(printed), instructions


def total(text: str) -> int:
    """The instructions that a file of callgrind's has collected.

    Raises:
        JobError: it does not say.
    """
    found = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
    if found is None:
        raise JobError("callgrind's file has neither totals nor a summary")
    return int(found.group(1))
