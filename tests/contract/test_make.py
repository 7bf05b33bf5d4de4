"""Messages of make: missing requirements, and the list of targets."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (
    *("demo", "test", "lint", "sanitize", "bench", "bench-control", "bench-paper", "bench-mixed", "bench-dag"),
    *("bench-moe", "dist", "docs", "clean"),
)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in the tree with an environment folder of its own."""
    command = ["make", "-C", str(ROOT), "--no-print-directory", f"VENV={folder / 'venv'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def fake_python(folder: Path, text: str) -> Path:
    """A `python3` that runs the shell text."""
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_python_without_ensurepip_is_an_error_that_names_the_package(tmp_path):
    python = fake_python(tmp_path, 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac')
    done = make(tmp_path, f"PYTHON={python}", str(tmp_path / "venv" / "venv.stamp"))
    assert done.returncode != 0
    assert "apt-get install python3-venv" in done.stderr


def test_an_old_python_is_an_error(tmp_path):
    done = make(tmp_path, f"PYTHON={fake_python(tmp_path, 'exit 1')}", str(tmp_path / "venv" / "venv.stamp"))
    assert done.returncode != 0
    assert "horocache needs Python 3.10 or newer" in done.stderr


def test_help_lists_every_target_that_the_readme_names(tmp_path):
    listed = make(tmp_path, "help").stdout
    for target in TARGETS:
        assert f"  {target} " in listed


def test_without_googletest_make_prints_how_to_install_it(tmp_path):
    done = make(tmp_path, "--dry-run", "GTEST=OFF", "test-cpp")
    assert "SKIPPED C++ tests: GoogleTest is not installed (Debian: apt-get install libgtest-dev)" in done.stdout


def test_every_long_part_has_a_row_in_the_guide_for_contributors():
    parts = re.search(r"^LONG_PARTS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert parts is not None
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [part for part in parts[1].split() if f"`check-long-{part}`" not in guide] == []


def test_the_long_check_of_exchanges_sets_both_sizes(tmp_path):
    done = make(tmp_path, "--dry-run", "check-long-exchange")
    assert "HC_TEST_EXCHANGE_STATES=" in done.stdout
    assert "HC_TEST_EXCHANGE_SCHEDULES=" in done.stdout
