"""Shared by the checks of this folder: lists of files, findings, and the run of a check."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SKIPPED_FOLDERS = {".git", "build", "dist", "results", "__pycache__", "node_modules"}


@dataclass(frozen=True, order=True)
class Finding:
    """One line that breaks a rule."""

    path: Path
    line: int
    message: str

    def text(self, root: Path) -> str:
        """Return ``file:line: message``, with the file relative to ``root``."""
        return f"{self.path.relative_to(root)}:{self.line}: {self.message}"


def run(check: Callable[[Path], Iterator[Finding]], description: str) -> None:
    """Run ``check`` on the tree given on the command line (by default this one); exit 1 if it reports a finding."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[2])
    root: Path = parser.parse_args().root.resolve()
    findings = sorted(set(check(root)))
    for finding in findings:
        print(finding.text(root))
    name = Path(sys.argv[0]).stem
    print(f"{name}: {len(findings)} finding(s)" if findings else f"{name}: ok")
    sys.exit(1 if findings else 0)


def files(root: Path, folders: tuple[str, ...], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files below ``folders`` that end in one of ``suffixes``, in a stable order."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            skipped = SKIPPED_FOLDERS.intersection(path.relative_to(root).parts)
            if path.suffix in suffixes and path.is_file() and not skipped:
                yield path


def tracked(root: Path) -> Iterator[Path]:
    """Yield every file that git tracks or would track; without git, every file."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        listed = [str(path.relative_to(root)) for path in root.rglob("*")]
    for name in sorted(filter(None, listed)):
        path = root / name
        if path.is_file() and not SKIPPED_FOLDERS.intersection(Path(name).parts):
            yield path


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a C++ file with their numbers; comments and the contents of strings are blanked."""
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return f'"{" " * (len(found) - 2)}"' if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    yield from enumerate(pattern.sub(blank, text).splitlines(), start=1)
