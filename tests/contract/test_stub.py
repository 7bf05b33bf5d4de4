"""The stub of the compiled module matches the module: names, and the parameters of every function."""

import ast
import re
from pathlib import Path

import pytest

from horocache import _core
from horocache.base.request import Request

STUB = Path(__file__).resolve().parents[2] / "horocache" / "_core.pyi"
TREE = ast.parse(STUB.read_text(encoding="utf-8"))


def declared(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The names that the stub, or a class in it, declares."""
    names: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            names[statement.name] = statement
        elif isinstance(statement, ast.AnnAssign):
            names[ast.unparse(statement.target)] = statement
    return names


def public(thing: object) -> set[str]:
    """The public names that the module, or a class of it, defines itself."""
    return {name for name in vars(thing) if not name.startswith("_")}


def stub_parameters(function: ast.FunctionDef) -> list[tuple[str, bool]]:
    """The name of each parameter but self, and True if it has a default."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    required = len(arguments) - len(function.args.defaults)
    found = [(argument.arg, index >= required) for index, argument in enumerate(arguments)]
    return [parameter for parameter in found if parameter[0] != "self"]


def bound_parameters(function: object) -> list[tuple[str, bool]]:
    """The same for a function of the module, from the signature line at the start of its docstring."""
    line = (getattr(function, "__doc__", None) or "").splitlines()[0]
    tree = ast.parse(f"def {re.sub(r'<[^<>]*>', '...', line)}: ...").body[0]
    assert isinstance(tree, ast.FunctionDef)
    return stub_parameters(tree)


MODULE = declared(TREE.body)
CLASSES = {name: node for name, node in MODULE.items() if isinstance(node, ast.ClassDef)}
FUNCTIONS = [(None, name) for name, node in MODULE.items() if isinstance(node, ast.FunctionDef)] + [
    (class_name, name)
    for class_name, node in CLASSES.items()
    for name, member in declared(node.body).items()
    if isinstance(member, ast.FunctionDef) and not member.decorator_list and not name.startswith("__dlpack")
]


def test_the_module_has_the_names_of_the_stub_and_no_others():
    assert public(_core) == {name for name in MODULE if not name.startswith("_")}
    assert isinstance(_core.__version__, str)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_members_of_the_stub_and_no_others(name):
    members = declared(CLASSES[name].body)
    assert public(getattr(_core, name)) == {member for member in members if not member.startswith("_")}
    missing = [member for member in members if not hasattr(getattr(_core, name), member)]
    assert not missing


@pytest.mark.parametrize(("class_name", "name"), FUNCTIONS)
def test_a_function_has_the_parameters_of_the_stub(class_name, name):
    body = declared(CLASSES[class_name].body) if class_name else MODULE
    function = getattr(getattr(_core, class_name) if class_name else _core, name)
    node = body[name]
    assert isinstance(node, ast.FunctionDef)
    assert bound_parameters(function) == stub_parameters(node)


def test_the_core_reads_the_fields_of_a_request_in_their_order():
    assert tuple(_core.request_fields()) == Request._fields
