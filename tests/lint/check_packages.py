"""Imports between Python packages go down a list, never up, and no modules import each other in a circle.

Imports inside functions count; imports for type checkers only (``if TYPE_CHECKING``) do not. The bindings of
``framework_bindings/`` are installed as ``horocache.torch`` and so on, and have these names here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from common import Finding, files, run

# From the bottom up. A module belongs to the longest entry that it begins with. "" is horocache/__init__.py; an entry
# that ends in a dot stands for the contents of the package without its __init__.py.
ORDER = (
    *("errors", "base", "_core", "_testing"),
    *("lang.errors", "lang.frontend", "lang.program", "lang.verify", "lang.compiler", "lang.formats"),
    *("lang.algorithms", "lang", "lang.loader", "lang.registry", "lang.tuning", "lang.msccl"),
    *("lang.draw", "lang.cost", "lang.links"),
    *("autotune", "moe.placement"),
    *("tuning.fingerprint", "tuning.table", "tuning.lookup"),
    *("core", "collectives", "user_backends", "data_parallel", "dag", "moe"),
    *("observe", "common_api", "testing", "compat"),
    "doctor",
    "launch",
    *("", "tuning", "cli", "tools", "compat.horovodrun", "compat.__main__"),
    "torch.expert_parameters",
    *("torch.compression", "torch.adapter", "torch.vjp_arithmetic", "torch.autograd", "torch.compile", "torch.ops"),
    "torch.sparse_allreduce",
    *("torch.sync_batch_norm", "torch.optimizer", "torch.distributed", "torch_entry_point", "torch"),
    "torch.moe",
    *("mcr_dl", "kvstore", "dag.training"),
    *("tensorflow.", "jax", "keras", "tensorflow.optimizer", "tensorflow", "tensorflow.keras"),
)
# Programs written for Horovod import these modules by Horovod's names; ORDER does not contain them.
SKIPPED = ("horocache/compat/packages/",)
ROOT = "horocache"


def module_of(path: str) -> str:
    """Return the name under which a file is imported."""
    name = path.removesuffix(".pyi").removesuffix(".py").replace("/", ".").replace("framework_bindings.", f"{ROOT}.")
    return name.removesuffix(".__init__")


def unit_of(module: str) -> str | None:
    """Return the entry of ORDER that a module belongs to; None if there is none."""
    name = module.removeprefix(ROOT).removeprefix(".")
    fitting = [unit for unit in ORDER if name == unit or (unit and name.startswith(unit.removesuffix(".") + "."))]
    return max(fitting, key=len, default=None)


def _for_type_checkers(tree: ast.Module) -> set[ast.AST]:
    conditions = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    return {inner for node in conditions for statement in node.body for inner in ast.walk(statement)}


def _base_of(node: ast.ImportFrom, package: str) -> str:
    """The module from which names are imported; ``package`` is that of the importing file."""
    if node.level == 0:
        return node.module or ""
    base = package.split(".")[: package.count(".") + 2 - node.level]
    return ".".join([*base, *filter(None, [node.module])])


def imports(tree: ast.Module, package: str, modules: set[str]) -> Iterator[tuple[int, str]]:
    """The modules of this project that a file imports, with the line; a name of a module counts as the module."""
    skipped = _for_type_checkers(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (base := _base_of(node, package)).partition(".")[0] == ROOT:
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if inner in modules else base
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.partition(".")[0] == ROOT)


def circle(graph: dict[str, dict[str, int]], start: str) -> list[str]:
    """Return a shortest path of imports from a module back to itself; empty if there is none."""
    ways = [[start]]
    seen = {start}
    for way in ways:
        for target in sorted(graph.get(way[-1], {})):
            if target == start:
                return [*way, start]
            if target not in seen:
                seen.add(target)
                ways.append([*way, target])
    return []


def check(root: Path) -> Iterator[Finding]:
    """Check every import of horocache/ and framework_bindings/."""
    paths = {
        module_of(name): path
        for path in files(root, ("horocache", "framework_bindings"), (".py", ".pyi"))
        if not (name := str(path.relative_to(root))).startswith(SKIPPED)
    }
    graph: dict[str, dict[str, int]] = {}
    for module, path in paths.items():
        unit = unit_of(module)
        if unit is None:
            yield Finding(path, 1, f"{module} belongs to no package of ORDER in tests/lint/check_packages.py; add it")
            continue
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for line, target in imports(tree, package, set(paths)):
            graph.setdefault(module, {}).setdefault(target, line)
            other = unit_of(target)
            if other is None or ORDER.index(other) > ORDER.index(unit):
                yield Finding(path, line, f"{module} must not import {target}, which is above it in ORDER")
    for module in sorted(graph):
        way = circle(graph, module)
        if way and module == min(way):
            yield Finding(paths[module], graph[module][way[1]], f"modules import each other: {' -> '.join(way)}")


if __name__ == "__main__":
    run(check, __doc__)
