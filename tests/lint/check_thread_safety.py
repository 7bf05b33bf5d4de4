"""Clang's thread-safety analysis over the core; needs clang++, and says SKIPPED where there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from common import Finding, files, run

CANDIDATES = ("clang++", *(f"clang++-{version}" for version in range(25, 13, -1)))
FLAGS = ("-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wthread-safety", "-Wno-missing-field-initializers")
TOGETHER = 40  # files
ALONE = ("kernels",)  # folders whose files have the same source, each for an instruction set
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


def together(paths: Iterable[Path]) -> Iterator[list[Path]]:
    """A folder's files, some at a time: the headers that they share take most of the time."""
    for folder, content in groupby(sorted(paths), lambda path: path.parent):
        inside = list(content)
        size = 1 if folder.name in ALONE else TOGETHER
        for first in range(0, len(inside), size):
            yield inside[first : first + size]


def analyse(clang: str, flags: list[str], paths: list[Path]) -> Iterator[Finding]:
    """Every diagnostic of these files."""
    source = "".join(f'#include "{path}"\n' for path in paths)
    call = [clang, *FLAGS, "-Werror", *flags, "-xc++", "-"]
    done = subprocess.run(call, input=source, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    matches = DIAGNOSTIC.finditer(done.stderr)
    found = [Finding(Path(match["file"]), int(match["line"]), match["text"]) for match in matches]
    yield from found or [Finding(paths[0], 1, f"{clang} exited with {done.returncode}: {done.stderr.strip()}")]


def check(root: Path) -> Iterator[Finding]:
    """Analyse all files, as many at a time as there are cores."""
    clang = find_clang()
    if clang is None:
        print("check_thread_safety: SKIPPED, there is no clang++ (Debian: apt-get install clang)")
        sys.exit(0)
    flags = include_flags(root)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        batches = together(files(root, ("cpp_core",), (".cc",)))
        for found in pool.map(lambda paths: list(analyse(clang, flags, paths)), batches):
            for finding in found:
                inside = finding.path.is_relative_to(root)
                yield finding if inside else Finding(root / "cpp_core", 1, f"{finding.path}: {finding.message}")


if __name__ == "__main__":
    run(check, __doc__)
