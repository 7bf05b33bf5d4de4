"""Comments, docstrings, documents and messages read as plain English: no riddles about "who", "what" or "nobody".

The patterns are those of sentences that a reader has to turn round first. A message is a string of three words or more
in a source of the product. Code and quoted text are skipped.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from common import Finding, run, tracked

START = r"(?:^|(?<=[.:;] )|(?<=\| ))"  # of a sentence, or of a cell in a table
PATTERNS = {
    re.compile(START + r"Who(?:ever)? (?!.*\?)"): "begin with the actor: the rank, the caller, the backend, the peer",
    re.compile(START + r"What(?:ever)? (?!.*\?)"): "begin with the thing itself",
    re.compile(
        r"(?<![Tt]here )\b(?:is|are|was|were) no (?!(?:longer|more|other)\b)"
    ): 'say it positively: "is not a ...", "has no ..."',
    re.compile(r"\b(?:[Nn]obody|[Ss]omebody|[Ww]hoever)\b"): "name the rank, the caller, the user or the process",
    re.compile(r", say[,.;]"): "say which",
    re.compile(r"\bof his\b|\bhis own\b"): "ranks and threads are things",
    re.compile(r"\bso many\b|\bas there\b(?! (?:is|are|was|were)\b)"): "say how many, or where",
}
# The change log has sentences of its own; reference pages are made of docstrings and of knobs.def.
EXEMPT = (
    "CHANGELOG.md",
    "LICENSE",
    "docs/reference/",
    "tests/lint/check_prose.py",
    "tests/unit/lint/test_check_prose.py",
)


def _cpp_comments(text: str) -> Iterator[tuple[int, str]]:
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[ ]?([^\n]*)')
    for number, line in enumerate(text.splitlines(), start=1):
        for match in pattern.finditer(line):
            if match[1]:
                yield number, match[1]


def _python_comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                first = node.body[0].lineno
                yield from ((first + i, line.strip()) for i, line in enumerate(docstring.splitlines()))


def _is_message(text: str) -> bool:
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 3


def _cpp_messages(text: str) -> Iterator[tuple[int, str]]:
    pattern = re.compile(r'"((?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*')
    for number, line in enumerate(text.splitlines(), start=1):
        yield from ((number, match[1]) for match in pattern.finditer(line) if match[1] and _is_message(match[1]))


def _python_messages(text: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(text)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield from ((node.lineno, line) for line in node.value.splitlines() if _is_message(line))


def _markdown_lines(text: str) -> Iterator[tuple[int, str]]:
    code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and not line.startswith("    "):
            yield number, line


READERS = {
    ".h": _cpp_comments,
    ".cc": _cpp_comments,
    ".def": _cpp_comments,
    ".py": _python_comments,
    ".pyi": _python_comments,
    ".md": _markdown_lines,
}
MESSAGES = {".h": _cpp_messages, ".cc": _cpp_messages, ".def": _cpp_messages, ".py": _python_messages}
PRODUCT = ("cpp_core/", "horocache/", "framework_bindings/")


def _prose(path: Path, product: bool) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    for number, line in READERS[path.suffix](text):
        yield number, re.sub(r"`[^`]*`|\"[^\"]*\"|\[[^\]]*\]", "``", line)
    if product and path.suffix in MESSAGES:
        yield from MESSAGES[path.suffix](text)


def check(root: Path) -> Iterator[Finding]:
    """Look at the prose of every source file and document."""
    for path in tracked(root):
        name = str(path.relative_to(root))
        if path.suffix not in READERS or name.startswith(EXEMPT):
            continue
        for number, prose in _prose(path, name.startswith(PRODUCT)):
            for pattern, advice in PATTERNS.items():
                if match := pattern.search(prose):
                    yield Finding(path, number, f"{match.group().strip()!r}: {advice}")


if __name__ == "__main__":
    run(check, __doc__)
