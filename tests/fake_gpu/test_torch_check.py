"""The checks for a GPU pass on the fake driver."""

import os
import subprocess
import sys

import pytest
from fakes import CUDA, ROOT

SCRIPT = str(ROOT / "benchmarks" / "gpu" / "torch_check.py")


def run(*command):
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "HOROCACHE_CUDA_LIBRARY": str(CUDA)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize(
    ("ranks", "checks", "code"), [(2, ["results", "order", "reuse", "training", "speed"], 0), (3, ["kill"], 137)]
)
def test_the_checks_pass(ranks, checks, code):
    launcher = ["-m", "horocache.launch", "-np", str(ranks), sys.executable]
    done = run(*launcher, SCRIPT, *checks, "--device", "fakecuda", "--max-bytes", "1048576")
    assert done.returncode == code, done.stdout + done.stderr
    assert all(f"[0] {check} " in done.stdout for check in checks), done.stdout


def test_a_limit_that_leaves_no_size_is_an_error():
    done = run(SCRIPT, "speed", "--device", "fakecuda", "--max-bytes", "3")
    assert done.returncode == 2 and "--max-bytes 3: the smallest tensor has 4 bytes" in done.stderr, done.stderr
