"""The calibration of CUDA and NCCL on a machine without either: its rows, exit status and description."""

import json
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.timing import Times

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu" / "calibrate.py"


def test_without_the_libraries_each_section_fails_and_the_exit_status_counts_it(tmp_path):
    file = tmp_path / "rows.jsonl"
    missing = ["--cuda", "libnowhere.so", "--nccl", "libnowhere.so"]
    command = [sys.executable, SCRIPT, *missing, "--sections", "init,nccl-init", "--output", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    seen = [(row["section"], row["name"]) for row in rows]
    assert seen == [("init", "load"), ("init", "section"), ("nccl-init", "load"), ("nccl-init", "section")]
    assert all("cannot load libnowhere.so" in row["seen"] for row in rows if row["name"] == "load")
    assert not any(row["ok"] for row in rows) and done.returncode == len(rows), done.stdout


def test_without_the_libraries_sections_that_use_numpy_fail_too(tmp_path):
    file, sections = tmp_path / "rows.jsonl", ["packing", "staging", "ordering", "nccl-flat", "nccl-flat-two"]
    missing = ["--cuda", "libnowhere.so", "--nccl", "libnowhere.so"]
    command = [sys.executable, SCRIPT, *missing, "--sections", ",".join(sections), "--output", file]
    subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["section"], row["name"]) for row in rows] == [
        (section, name) for section in sections for name in ("load", "section")
    ]


def test_every_section_is_listed_with_its_limit():
    done = subprocess.run([sys.executable, SCRIPT, "--list"], capture_output=True, text=True, check=True, timeout=60)
    assert len(done.stdout.splitlines()) > 20 and all("at most" in line for line in done.stdout.splitlines())


def test_a_note_counts_the_launches_that_the_delay_did_not_hide():
    assert Times([5.0, 7.0], [100.0, 299.0], 300.0).note() == "min 5.0, max 7.0, n 2; host 199.5 us"
    late = Times([5.0, 700.0], [100.0, 900.0], 300.0).note()
    assert late.endswith("; the host was slower than the delay 1 times")


def test_the_description_counts_the_rows_and_deviations_of_the_results():
    rows = [json.loads(line) for line in (SCRIPT.parent / "results" / "h100.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "section" in row]
    expectations = [row for row in rows if "expected" in row]
    deviations = [row for row in expectations if row["expected"] != row.get("seen", "")]
    text = (SCRIPT.parent / "README.md").read_text()
    counts = re.search(r"([\d,]+) rows; of ([\d,]+) expectations (\d+) did not hold", text)
    assert counts is not None
    assert [int(count.replace(",", "")) for count in counts.groups()] == [len(rows), len(expectations), len(deviations)]
