"""The checks for a GPU pass on the fake driver."""

import json
import os
import subprocess
import sys

import pytest
from fakes import CUDA, ROOT, nccl

SCRIPT = str(ROOT / "benchmarks" / "gpu" / "torch_check.py")
SPEED = str(ROOT / "benchmarks" / "gpu" / "torch_speed.py")
NCCL = {"HOROCACHE_NCCL_LIBRARY": str(nccl(23007)), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "HOROCACHE_CUDA_LIBRARY": str(CUDA), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize(
    ("ranks", "checks", "code"), [(2, ["results", "order", "reuse", "training"], 0), (3, ["kill"], 137)]
)
def test_the_checks_pass(ranks, checks, code):
    launcher = ["-m", "horocache.launch", "-np", str(ranks), sys.executable]
    done = run(*launcher, SCRIPT, *checks, "--device", "fakecuda")
    assert done.returncode == code, done.stdout + done.stderr
    assert all(f"[0] {check} " in done.stdout for check in checks), done.stdout


@pytest.mark.parametrize(("ranks", "window"), [(1, "0"), (2, "0"), (2, "67108864")])
def test_the_checks_pass_by_nccl(ranks, window):
    launcher = ["-m", "horocache.launch", "-np", str(ranks), sys.executable]
    checks = ["results", "order", "reuse", "training"]
    options = {"HOROCACHE_NCCL": "on", "HOROCACHE_NCCL_WINDOW_BYTES": window}
    done = run(*launcher, SCRIPT, *checks, "--device", "fakecuda", **NCCL, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"[0] {check} " in done.stdout for check in checks), done.stdout


def test_the_speeds_are_measured_and_their_results_checked(tmp_path):
    output = tmp_path / "speed.jsonl"
    options = ["--device", "fakecuda", "--turns", "1", "--max-bytes", "4096", "--images", "2", "--output", str(output)]
    launcher = ["-m", "horocache.launch", "-np", "2", sys.executable]
    done = run(*launcher, SPEED, "allreduce", "gradients", "training", *options, **NCCL)
    assert done.returncode == 0, done.stdout + done.stderr
    *rows, goal = [json.loads(line) for line in output.read_text().splitlines()]
    assert goal["goal"].startswith("allreduce of 4 B") and goal["limit"] == 15.0, goal
    assert [(row["section"], row["way"]) for row in rows] == [
        *[("allreduce", way) for _size in (4, 4096) for way in ("nccl", "horocache")],
        *[("gradients", way) for way in ("nccl, a group of calls", "horocache, packed", "horocache, flat")],
        ("training", "horocache"),
    ]
    assert all(row["us"] >= row["min_us"] > 0 and row["ranks"] == 2 for row in rows), rows


def test_a_limit_that_leaves_no_size_is_an_error():
    done = run(SPEED, "allreduce", "--device", "fakecuda", "--max-bytes", "3")
    assert done.returncode == 2 and "--max-bytes 4" in done.stderr, done.stderr
