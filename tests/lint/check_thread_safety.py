"""Clang's thread-safety analysis over the core; needs clang++, and says SKIPPED where there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import Finding, files, run

CANDIDATES = ("clang++", *(f"clang++-{version}" for version in range(25, 13, -1)))
FLAGS = ("-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wthread-safety", "-Wno-missing-field-initializers")
DIAGNOSTIC = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?:fatal )?(?:error|warning): (?P<text>.*)$", re.M)


def find_clang() -> str | None:
    """The newest clang++ in PATH."""
    return next(filter(None, map(shutil.which, CANDIDATES)), None)


def include_flags(root: Path) -> list[str]:
    """Where the core's, Python's and pybind11's headers are."""
    import pybind11  # a build requirement; the other checks run without it

    version = re.search(r'^version = "(.*)"$', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    found = [f"-I{root / 'cpp_core'}"]
    found += [f"-isystem{folder}" for folder in (sysconfig.get_paths()["include"], pybind11.get_include())]
    return [*found, f'-DHC_VERSION="{version.group(1) if version else ""}"']


def analyse(clang: str, flags: list[str], path: Path) -> Iterator[Finding]:
    """Every diagnostic of one file."""
    done = subprocess.run([clang, *FLAGS, "-Werror", *flags, str(path)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    matches = DIAGNOSTIC.finditer(done.stderr)
    found = [Finding(Path(match["file"]), int(match["line"]), match["text"]) for match in matches]
    yield from found or [Finding(path, 1, f"{clang} exited with {done.returncode}: {done.stderr.strip()}")]


def check(root: Path) -> Iterator[Finding]:
    """Analyse all files, as many at a time as there are cores."""
    clang = find_clang()
    if clang is None:
        print("check_thread_safety: SKIPPED, there is no clang++ (Debian: apt-get install clang)")
        sys.exit(0)
    flags = include_flags(root)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(lambda path: list(analyse(clang, flags, path)), files(root, ("cpp_core",), (".cc",))):
            for finding in found:
                inside = finding.path.is_relative_to(root)
                yield finding if inside else Finding(root / "cpp_core", 1, f"{finding.path}: {finding.message}")


if __name__ == "__main__":
    run(check, __doc__)
