"""Files up to 600 lines, functions up to 60 lines, cyclomatic complexity up to 15.

A Python function's docstring does not count. Tests and tables (.def files) are exempt.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import lizard
from common import Finding, files, run

FOLDERS = ("cpp_core", "horocache", "framework_bindings", "benchmarks", "docs")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_COMPLEXITY = 15


def check_file_length(path: Path) -> Iterator[Finding]:
    """Check the length of the whole file."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > MAX_FILE_LINES:
        yield Finding(path, MAX_FILE_LINES + 1, f"{lines} lines, at most {MAX_FILE_LINES}; split it by topic")


def check_function_length(path: Path, name: str, line: int, lines: int) -> Iterator[Finding]:
    """Check the length of one function."""
    if lines > MAX_FUNCTION_LINES:
        yield Finding(path, line, f"{name} has {lines} lines, at most {MAX_FUNCTION_LINES}")


def check_python_functions(path: Path) -> Iterator[Finding]:
    """Check the lengths of a Python file's functions, without their docstrings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        first = node.body[0]
        if ast.get_docstring(node, clean=False) is not None:
            lines -= (first.end_lineno or first.lineno) - first.lineno + 1
        yield from check_function_length(path, node.name, node.lineno, lines)


def check(root: Path) -> Iterator[Finding]:
    """Measure every source file."""
    for path in files(root, FOLDERS, (".h", ".cc", ".py")):
        yield from check_file_length(path)
        if path.suffix == ".py":
            yield from check_python_functions(path)
        for function in lizard.analyze_file(str(path)).function_list:
            if path.suffix != ".py":
                yield from check_function_length(path, function.long_name, function.start_line, function.length)
            if function.cyclomatic_complexity > MAX_COMPLEXITY:
                message = f"{function.name} has complexity {function.cyclomatic_complexity}, at most {MAX_COMPLEXITY}"
                yield Finding(path, function.start_line, message)


if __name__ == "__main__":
    run(check, __doc__)
