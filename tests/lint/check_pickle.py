"""Nothing executes data: one module unpickles, one compiles source of its own, and no code uses eval or a shell.

``horocache/collectives/object_collectives.py`` unpickles between authenticated ranks of one job.
``horocache/collectives/forms.py`` compiles the methods that it derives from constants of the package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from common import Finding, files, run

ALLOWED = "horocache/collectives/object_collectives.py"
MAY_COMPILE = "horocache/collectives/forms.py"
FOLDERS = ("horocache", "framework_bindings", "benchmarks", "docs")
WRITERS = {"dump", "dumps"}  # functions of these modules that read nothing
UNPICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


def imported_modules(node: ast.AST) -> set[str]:
    """Return the top-level names of the modules that an import statement imports, more than functions that write."""
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.level == 0 and not {alias.name for alias in node.names} <= WRITERS:
        return {(node.module or "").split(".")[0]}
    return set()


def check_call(call: ast.Call, may_compile: bool) -> str | None:
    """Return the problem of a call; None if the call is allowed."""
    name = ast.unparse(call.func)
    if name == "exec" and may_compile:
        return None
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name in {"eval", "exec", "builtins.eval", "builtins.exec"}:
        return f"{name}() executes text"
    if name in {"os.system", "os.popen"} or keywords.get("shell", "False") != "False":
        return f"{name}() goes through a shell; pass a list of arguments"
    if name == "torch.load" and keywords.get("weights_only") != "True":
        return "torch.load() without weights_only=True unpickles"
    return None


def check_file(path: Path, may_pickle: bool, may_compile: bool) -> Iterator[Finding]:
    """Check imports and calls of one module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        for module in sorted(imported_modules(node) & UNPICKLERS):
            if not may_pickle:
                yield Finding(path, getattr(node, "lineno", 1), f"{module} outside {ALLOWED}")
        problem = check_call(node, may_compile) if isinstance(node, ast.Call) else None
        if problem:
            yield Finding(path, getattr(node, "lineno", 1), problem)


def check(root: Path) -> Iterator[Finding]:
    """Check all Python code that users run."""
    for path in files(root, FOLDERS, (".py",)):
        yield from check_file(path, path == root / ALLOWED, path == root / MAY_COMPILE)


if __name__ == "__main__":
    run(check, __doc__)
