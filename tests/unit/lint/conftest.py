"""Runs the checks of tests/lint on a source tree in a temporary folder, as `make lint` runs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

LINT = Path(__file__).resolve().parents[2] / "lint"
CMAKE = "set(HC_LAYERS base wire control net data observe runtime)\n"

Lint = Callable[[str, dict[str, str]], list[str]]


@pytest.fixture
def lint(tmp_path: Path) -> Lint:
    """``lint(check, {path: text})`` returns the findings, without the closing line."""

    def run(check: str, sources: dict[str, str]) -> list[str]:
        for name, text in {"CMakeLists.txt": CMAKE, **sources}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        command = [sys.executable, str(LINT / f"{check}.py"), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        *findings, last = done.stdout.splitlines() or [""]
        assert not done.stderr, done.stderr
        assert last == (f"{check}: {len(findings)} finding(s)" if findings else f"{check}: ok")
        assert done.returncode == (1 if findings else 0)
        return findings

    return run
