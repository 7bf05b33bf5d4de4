"""The calibration on the fakes: what they answer is what the real libraries answered on an H100."""

import json
import os
import subprocess
import sys

import pytest
from fakes import CUDA, ROOT, nccl

RESULTS = ROOT / "benchmarks" / "gpu" / "results" / "h100.jsonl"

# Rows of which the fakes differ from the real libraries, and why. By section, then by the beginning of the row's name.
DIFFERENCES: dict[str, dict[str, str]] = {
    "init": {
        "cuMemcpyBatchAsync of": "the fake has no cuGetProcAddress",
        "cuEventElapsedTime of": "the fake has no cuGetProcAddress",
        "cuMemAlloc of": "the fake has no cuGetProcAddress",
        "cuMemAlloc_v2 of": "the fake has no cuGetProcAddress",
        "cuNoSuchFunction of": "the fake has no cuGetProcAddress",
        "cuInit of": "the fake has no cuGetProcAddress",
    },
    "nccl-calls": {"stream": "a measure of time: true if the row comes within 60 ms"},
    "nccl-library": {"functions": "the fake has not all functions of the version"},
}


def calibrate(tmp_path, version, sections):
    """The rows of a run, by section and name."""
    file = tmp_path / "rows.jsonl"
    command = [sys.executable, ROOT / "benchmarks" / "gpu" / "calibrate.py", "--output", file]
    command += ["--cuda", CUDA, "--nccl", nccl(version), "--sections", ",".join(sections)]
    # Work that begins late shows rows that only a fast device answers as expected.
    environment = {**os.environ, "FAKE_GPU_STRICT": "0", "FAKE_GPU_DELAY_US": "300"}
    subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {(row["section"], row["name"]): row for row in rows}


def measured(version):
    """The rows of the real libraries, by section and name."""
    number, rows = None, {}
    for line in RESULTS.read_text().splitlines():
        row = json.loads(line)
        if "machine" in row:
            number = int("".join(part.zfill(2) for part in row["machine"]["nccl"].split(".")))
        elif number == version:
            rows[row["section"], row["name"]] = row
    return rows


def differs(row):
    """True if the row is listed as one of which the fakes differ."""
    return any(row["name"].startswith(name) for name in DIFFERENCES.get(row["section"], {}))


@pytest.mark.parametrize(("version", "sections"), [(22809, ["contract"]), (23007, ["contract-two"])])
def test_the_fakes_keep_the_contract(tmp_path, version, sections):
    rows = calibrate(tmp_path, version, sections)
    wrong = [f"{name}: {row['seen']}, expected {row['expected']}" for name, row in rows.items() if not row["ok"]]
    assert not wrong
    assert len(rows) > 15


@pytest.mark.parametrize("sections", [["init"], ["capture"], ["nccl-library", "nccl-init", "nccl-calls"]])
def test_the_fakes_answer_as_the_real_libraries_did(tmp_path, sections):
    rows, real = calibrate(tmp_path, 22809, sections), measured(22809)
    wanted = {key: row for key, row in real.items() if key[0] in sections and "value" not in row and not differs(row)}
    different = [
        f"{key}: {rows[key]['seen'] if key in rows else 'no row'}, measured {row.get('seen', '')}"
        for key, row in wanted.items()
        if key not in rows or (rows[key]["seen"] != row.get("seen", "") and "at once" not in row.get("seen", ""))
    ]
    assert not different, "\n".join(different)
    assert len(wanted) > 80
