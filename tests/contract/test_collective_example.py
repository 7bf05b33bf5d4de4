"""The example of docs/explanation/adding_a_collective.md applies to the sources, and touches few of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "adding_a_collective.md").read_text(encoding="utf-8")
PATCH = ROOT / "docs" / "examples" / "scan.patch"
TEXT = PATCH.read_text(encoding="utf-8")
FILES = re.findall(r"^diff --git a/(\S+) b/\1$", TEXT, re.MULTILINE)
SOURCES = [name for name in FILES if not name.startswith("tests/")]
NEW = re.findall(r"^diff --git a/(\S+) .*\nnew file mode", TEXT, re.MULTILINE)
MOST = 12


def test_the_example_touches_as_many_source_files_as_its_page_says():
    [stated] = re.findall(r"touches (\d+) source files", PAGE)
    assert len(SOURCES) == int(stated) <= MOST
    assert not [name for name in FILES if name.endswith(".pyi") or name.startswith("docs/")], "generated files"


def test_the_table_of_the_page_has_every_source_file_of_the_example():
    assert re.findall(r"^\| `((?:cpp_core|horocache)/\S+)` \|", PAGE, re.MULTILINE) == sorted(SOURCES, key=PAGE.index)
    assert [name for name in SOURCES if name in NEW] == re.findall(r"^\| `(\S+)` \| .*; new \|$", PAGE, re.MULTILINE)


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_example_applies_to_the_sources(tmp_path):
    for name in FILES:
        if name not in NEW:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    command = ["git", "apply", "--check", "--whitespace=error", str(PATCH)]
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}  # never in a repository around it
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}See 'When the patch no longer applies' in the page."
