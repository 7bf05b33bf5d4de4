"""Every promise of the pages has tests: each row of their tables is listed with tests, and all of these tests exist.

A row is identified by its first cell. A test is named by its file below ``tests`` and its name, in C++ with its suite.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from .promised_differences import BETTER_THAN_HOROVOD
from .promised_failures import FAILURES

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"

PAGES = {
    "failures.md": (None, FAILURES),
    "migration.md": ("What gets better", BETTER_THAN_HOROVOD),
}


def first_cells(page: str, heading: str | None) -> list[str]:
    """The first cells of the rows in a page's tables, or in those below one heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if heading is not None:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"^\|[^\n]*\n\|[-|: ]+\n((?:\|[^\n]*\n)+)", text, re.MULTILINE)
    return [row.split(" | ")[0].removeprefix("| ") for table in tables for row in table.splitlines()]


@functools.cache
def names_in(file: str) -> set[str]:
    """The names of the tests in a file below ``tests``; empty if the file does not exist."""
    path = TESTS / file
    if not path.is_file():
        return set()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".cc":
        return {
            f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", text, re.MULTILINE)
        }
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in functions if not _is_expected_to_fail(node)}


def _is_expected_to_fail(function: ast.FunctionDef) -> bool:
    return any("xfail" in ast.unparse(decorator) for decorator in function.decorator_list)


@pytest.mark.parametrize("page", PAGES)
def test_each_row_of_the_page_has_tests_and_each_promise_is_in_the_page(page):
    heading, promises = PAGES[page]
    rows = first_cells(page, heading)
    assert len(rows) == len(set(rows)) > 20
    assert sorted(rows) == sorted(promises), "the rows of the page and the listed promises must be equal"
    assert all(promises.values())


@pytest.mark.parametrize("page", PAGES)
def test_each_named_test_exists_and_is_not_expected_to_fail(page):
    named = [test for tests in PAGES[page][1].values() for test in tests]
    missing = sorted({test for test in named if test.partition("::")[2] not in names_in(test.partition("::")[0])})
    assert not missing, f"there are no such tests: {missing}"
