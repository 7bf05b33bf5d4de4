"""Nothing in the tree belongs to one machine: no path of a user's home or work folder, no registry's host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from common import Finding, run, tracked

# Written so that this file does not match itself.
FORBIDDEN = {
    # An absolute path outside the folders of every Linux and the places in a program's or a table's file; or a home.
    re.compile(
        r"(?<![^\s\"'`(=])/(?!(?:usr|etc|dev|proc|sys|bin|lib|run|tmp|var|program|algo|source|scratch|waits"
        r"|operations|sizes|candidates|failures|libraries|host)/)[a-z]\w*/\w"
        r"|(?<![\w.}])/(?:root|home|Users)\b"
    ): "a machine's path",
    re.compile(
        r"(?<![\w.}])/(?:tmp|var/tmp)/\w(?!\S*XXXXXX)"
    ): "a fixed path for temporary files; ask for one (TMPDIR, tempfile)",
    re.compile(r"\b(?:pypi|pythonhosted|debian|npmjs|conda)[.](?:org|com|io)\b"): "a registry's host",
    re.compile(r"--(?:extra-)?index-url|--find-links"): "a registry's address; that is the user's to configure",
}
SUFFIXES = {".py", ".pyi", ".h", ".cc", ".def", ".md", ".toml", ".txt", ".cmake", ".in", ".svg", ".yml", ".json", ""}
EXEMPT = {"LICENSE", "tests/lint/check_names.py", "tests/unit/lint/test_check_names.py"}


def check(root: Path) -> Iterator[Finding]:
    """Check every text file."""
    for path in tracked(root):
        if path.suffix not in SUFFIXES or str(path.relative_to(root)) in EXEMPT:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            for pattern, what in FORBIDDEN.items():
                if match := pattern.search(line):
                    yield Finding(path, number, f"{match.group()!r} is {what}")


if __name__ == "__main__":
    run(check, __doc__)
