"""Counts, with valgrind, the instructions of the hooks of a backward pass: the count is the same on a busy machine.

torch calls all hooks of a finished gradient from one C++ function. callgrind collects only inside that function, so
that a real backward pass can be run. The count of a run of few steps is subtracted from the count of a longer run, so
that one-time work of the first steps (sending names, warming up Python) does not count.

``python benchmarks/instructions.py`` prints the instructions that horocache adds to a whole step, in all threads, by
library: steps with horocache less steps without it. ``python benchmarks/instructions.py CUDA NCCL`` prints those of the
core for a fused allreduce of tensors on a device, from its submission to its launch; CUDA and NCCL are the fake
libraries in ``build/dev/tests/fake_gpu``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.job import JobError, run_command
from benchmarks.report import Table

FEW, MORE = 2, 6  # steps
_CALLER = "torch::autograd::PyFunctionTensorPostAccGradHooks::operator()*"
_PROGRAM = Path(__file__).with_name("scripts") / "hooks.py"
_ON_DEVICE = _PROGRAM.with_name("device_steps.py")
_TIMEOUT_S = 900.0  # importing torch alone takes a minute and a half under valgrind


def why_not() -> str:
    """Return why instructions cannot be counted here; empty if they can."""
    return "" if shutil.which("valgrind") else "there is no valgrind (Debian: apt-get install valgrind)"


def per_hook() -> float:
    """Return the instructions per parameter of one backward pass, in the thread that runs it.

    Raises:
        JobError: valgrind failed, or found no hook.
    """
    with tempfile.TemporaryDirectory(prefix="horocache-bench-") as name, ThreadPoolExecutor(2) as pool:
        (parameters, few), (_, more) = pool.map(lambda steps: _counted(Path(name), steps), (FEW, MORE))
    return (more - few) / (MORE - FEW) / parameters


def _run(path: Path, options: list[str], arguments: list[str], program: Path = _PROGRAM) -> tuple[int, str]:
    """Return the number of parameters, and the text of callgrind's file."""
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={path}", *options]
    command = [*valgrind, sys.executable, str(program), *arguments]
    printed = run_command(command, _TIMEOUT_S, {"PYTHONHASHSEED": "0", "HOROCACHE_RANK": "0", "HOROCACHE_SIZE": "1"})
    return int(printed), path.read_text(encoding="utf-8")


def _counted(folder: Path, steps: int) -> tuple[int, int]:
    """Return the number of parameters, and the instructions of all their hooks in ``steps`` steps."""
    options = ["--collect-atstart=no", f"--toggle-collect={_CALLER}"]
    parameters, text = _run(folder / f"{steps}.callgrind", options, [str(steps)])
    instructions = total(text)
    if instructions == 0:
        raise JobError(f"valgrind saw no call of {_CALLER}; {os.fspath(sys.executable)}'s torch calls hooks elsewhere")
    return parameters, instructions


def total(text: str) -> int:
    """Return the number of instructions that a file of callgrind has collected.

    Raises:
        JobError: the file lacks the number.
    """
    found = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
    if found is None:
        raise JobError("callgrind's file has neither totals nor a summary")
    return int(found.group(1))


def by_library() -> tuple[int, Counter[str]]:
    """Return the number of parameters, and the instructions that horocache adds to a step, by library.

    Raises:
        JobError: valgrind failed.
    """

    def counted(run: tuple[str, int]) -> tuple[int, Counter[str]]:
        kind, steps = run
        parameters, text = _run(Path(name) / f"{steps}{kind}.callgrind", [], [*kind.split(), str(steps)])
        return parameters, of_objects(text)

    few, more = 4, 12  # the first step negotiates names, the second one priorities
    runs = [("", more), ("", few), ("--plain", more), ("--plain", few)]
    with tempfile.TemporaryDirectory(prefix="horocache-bench-") as name, ThreadPoolExecutor(2) as pool:
        found = list(pool.map(counted, runs))
    (parameters, with_more), (_, with_few), (_, plain_more), (_, plain_few) = found
    step: Counter[str] = Counter()
    for library in with_more:
        added = with_more[library] - with_few[library] - plain_more[library] + plain_few[library]
        step[library] = round(added / (more - few))
    return parameters, step


def on_device(cuda: str, nccl: str) -> tuple[int, float]:
    """Return the number of tensors of a fused allreduce, and the instructions of the core in the calling thread.

    Those of Python and of libc are left out: most of them are the fake libraries' and the test's arrays'.

    Args:
        cuda: path of the fake CUDA driver.
        nccl: path of the fake NCCL.

    Raises:
        JobError: valgrind failed.
    """

    def counted(steps: int) -> tuple[int, int]:
        path = Path(name) / f"{steps}.callgrind"
        tensors, _ = _run(path, ["--separate-threads=yes"], [cuda, nccl, str(steps)], _ON_DEVICE)
        libraries = of_objects(Path(f"{path}-01").read_text(encoding="utf-8"))
        return tensors, sum(count for library, count in libraries.items() if library.startswith("_core."))

    few, more = 10, 110
    with tempfile.TemporaryDirectory(prefix="horocache-bench-") as name, ThreadPoolExecutor(2) as pool:
        (tensors, with_more), (_, with_few) = pool.map(counted, (more, few))
    return tensors, (with_more - with_few) / (more - few)


def of_objects(text: str) -> Counter[str]:
    """Return the instructions in the code of each library, without its callees, from the text of callgrind's file."""
    names: dict[str, str] = {}
    costs: Counter[str] = Counter()
    current, called = "", False
    for line in text.splitlines():
        if (found := re.match(r"(c?ob)=\((\d+)\)(?: (.+))?$", line)) is not None:
            kind, number, name = found.groups()
            names.setdefault(number, Path(name).name if name else "")
            current = names[number] if kind == "ob" else current
        elif line.startswith("calls="):
            called = True  # the next line counts the callee
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            if not called:
                costs[current] += int(line.split()[1])
            called = False
    return costs


def _main() -> None:
    reason = why_not()
    if reason:
        raise SystemExit(reason)
    if len(sys.argv) == 3:
        tensors, count = on_device(*sys.argv[1:])
        print(f"an allreduce of {tensors} tensors on a device, from submission to launch: {count:,.0f} instructions")
        return
    parameters, step = by_library()
    rows = [[library, f"{count:,}", f"{count / parameters:,.0f}"] for library, count in step.most_common() if count]
    title = f"Instructions that horocache adds to a step of {parameters} gradients on one rank"
    print(Table(title, ["library", "of a step", "per gradient"], rows))


if __name__ == "__main__":
    _main()
