"""The calibration of CUDA and NCCL ends in order, and counts what deviates, where there is neither."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu" / "calibrate.py"


def test_without_the_libraries_each_section_says_so_and_the_exit_status_counts_it(tmp_path):
    file = tmp_path / "rows.jsonl"
    missing = ["--cuda", "libnowhere.so", "--nccl", "libnowhere.so"]
    command = [sys.executable, SCRIPT, *missing, "--sections", "init,nccl-init", "--output", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    seen = [(row["section"], row["name"]) for row in rows]
    assert seen == [("init", "load"), ("init", "section"), ("nccl-init", "load"), ("nccl-init", "section")]
    assert all("cannot load libnowhere.so" in row["seen"] for row in rows if row["name"] == "load")
    assert not any(row["ok"] for row in rows) and done.returncode == len(rows), done.stdout


def test_every_section_is_listed_with_its_limit():
    done = subprocess.run([sys.executable, SCRIPT, "--list"], capture_output=True, text=True, check=True, timeout=60)
    assert len(done.stdout.splitlines()) > 20 and all("at most" in line for line in done.stdout.splitlines())
