"""The checks for a GPU pass on the fake driver."""

import os
import subprocess
import sys

import pytest
from fakes import CUDA, ROOT


@pytest.mark.parametrize(
    ("ranks", "checks", "code"), [(2, ["results", "order", "reuse", "training", "speed"], 0), (3, ["kill"], 137)]
)
def test_the_checks_pass(ranks, checks, code):
    script = str(ROOT / "benchmarks" / "gpu" / "torch_check.py")
    launcher = [sys.executable, "-m", "horocache.launch", "-np", str(ranks)]
    done = subprocess.run(
        [*launcher, sys.executable, script, *checks, "--device", "fakecuda", "--max-bytes", "1048576"],
        env={**os.environ, "HOROCACHE_CUDA_LIBRARY": str(CUDA)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert all(f"[0] {check} " in done.stdout for check in checks), done.stdout
