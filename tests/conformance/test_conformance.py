"""Every operation of every backend agrees with NumPy on 1 to 4 ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from horocache.testing import run_ranks

from .programs import save_for_every_operation

FOLDER = str(Path(__file__).resolve().parent)

# Backend, number of ranks, and binding. The fake device has no tensors in Python; tests/cpp/data covers it.
JOBS = [
    ("shm", 1, "native"),
    ("shm", 2, "native"),
    ("shm", 3, "cffi"),
    ("shm", 4, "native"),
    ("loopback", 1, "native"),
    ("program", 2, "native"),
    ("program", 3, "native"),
    ("program", 4, "cffi"),
    ("star", 2, "native"),
    ("star", 3, "native"),
    ("gloo", 2, "native"),
]


def conform(folder, backend):
    sys.path.insert(0, folder)
    from run_cases import CASES, KNOBS, LEFT_OUT, register

    import horocache as hc

    register(backend)
    hc.init(**KNOBS)
    cases = {operation: case for operation, case in CASES.items() if operation not in LEFT_OUT.get(backend, ())}
    return {operation: case(hc, backend) for operation, case in cases.items()}


@pytest.mark.parametrize(("backend", "ranks", "binding"), JOBS)
def test_every_operation_agrees_with_numpy(backend, ranks, binding, tmp_path):
    knobs = {"binding": binding}
    if backend == "program":
        knobs["programs_any_order"] = "1"
        knobs["programs"] = str(save_for_every_operation(tmp_path, ranks))
    answers = run_ranks(conform, ranks, args=(FOLDER, backend), knobs=knobs, timeout=100)
    assert all(checks > 0 for answer in answers for checks in answer.values()), answers
    assert all(answer == answers[0] for answer in answers), "ranks made different numbers of checks"


def run_script(*arguments):
    command = [sys.executable, f"{FOLDER}/run_cases.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_script_prints_a_line_for_each_operation():
    done = run_script("--only", "barrier", "--only", "scalars")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        ["barrier", "5", "checks"],
        ["scalars", "6", "checks"],
    ]


def test_the_script_names_the_first_failure():
    done = run_script("--only", "scalars", "--backend", "nowhere")
    assert done.returncode == 1
    assert "FAILED on rank 0 of 1: scalars: UnsupportedError" in done.stderr
    assert "no backend 'nowhere'" in done.stderr
