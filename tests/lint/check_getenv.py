"""Only one C++ file and one Python module read the environment; other code gets its values as arguments.

C++: base/environment.cc. Python: horocache/core/launcher_environment.py. Tests may read and set the environment, and so
may horocache/testing, which prepares the environment of the ranks that tests start.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from common import Finding, code_lines, files, run

CPP_READER = "cpp_core/base/environment.cc"
PYTHON_READER = "horocache/core/launcher_environment.py"
TEST_HARNESS = "horocache/testing"
CPP_NAMES = re.compile(r"\b(getenv|secure_getenv|environ|setenv|putenv|unsetenv|clearenv)\b")
PYTHON_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def check_cpp(path: Path) -> Iterator[Finding]:
    """Report names of the C library that read or change the environment."""
    for number, line in code_lines(path):
        if match := CPP_NAMES.search(line):
            yield Finding(path, number, f"{match.group(1)} outside {CPP_READER}; take the value as an argument")


def check_python(path: Path) -> Iterator[Finding]:
    """Report ``os.environ`` and its relatives, also imported by name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        found: set[str] = set()
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            found = {node.attr} & PYTHON_NAMES
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            found = {alias.name for alias in node.names} & PYTHON_NAMES
        if found:
            line = getattr(node, "lineno", 1)
            yield Finding(path, line, f"os.{min(found)} outside {PYTHON_READER}; ask that module")


def check(root: Path) -> Iterator[Finding]:
    """Check the core and the packages that are installed."""
    for path in files(root, ("cpp_core",), (".h", ".cc")):
        if path != root / CPP_READER:
            yield from check_cpp(path)
    for path in files(root, ("horocache", "framework_bindings"), (".py",)):
        if path != root / PYTHON_READER and not path.is_relative_to(root / TEST_HARNESS):
            yield from check_python(path)


if __name__ == "__main__":
    run(check, __doc__)
