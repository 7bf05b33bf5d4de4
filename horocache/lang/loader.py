"""Finds the programs that a command line names: library algorithms, and functions or programs in a Python file."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from horocache.lang import algorithms
from horocache.lang.errors import UsageError
from horocache.lang.frontend.collectives import Collective
from horocache.lang.frontend.trace import Program


def write_program(source: str, arguments: Sequence[int], **options: Any) -> Program:
    """Write the program that a command line names.

    Args:
        source: the name of a library algorithm; ``FILE.py:FUNCTION``, a function that returns a program; or
            ``FILE.py``, a file with exactly one program.
        arguments: arguments of the function, such as the number of ranks, of hosts, or of ranks on a host.
        options: keyword arguments of ``Program``, for functions that accept them.

    Raises:
        UsageError: the source does not exist, or takes other arguments. ProgramError: the program is wrong.
    """
    if ".py" not in source:
        made = {name: one for name, one in vars(algorithms).items() if _is_algorithm(name, one)}
        if source not in made:
            raise UsageError(
                f"{source!r} is neither a Python file nor an algorithm; the algorithms are {', '.join(sorted(made))}."
            )
        return _written(made[source], source, arguments, options)
    file, _, name = source.partition(":")
    defined = _defined(file)
    if name:
        return _written(_function(source, defined), source, arguments, options)
    programs = [one for one in defined.values() if isinstance(one, Program)]
    if len(programs) != 1:
        raise UsageError(f"{file} has {len(programs)} programs; name a function that returns one: {file}:FUNCTION.")
    if arguments or options:
        raise UsageError(f"{file} has a program and no function, so it takes neither numbers nor options.")
    return programs[0]


def make_collective(source: str, arguments: Sequence[int]) -> Collective:
    """Make the collective that ``FILE.py:FUNCTION`` returns for these arguments.

    Raises:
        UsageError: the file or function does not exist, takes other arguments, or does not return a collective.
    """
    file, colon, name = source.partition(":")
    if not colon or not name:
        raise UsageError(f"{source!r} names no function that returns a collective; give FILE.py:FUNCTION.")
    made = _call(_function(source, _defined(file)), source, arguments, {})
    if not isinstance(made, Collective):
        raise UsageError(f"{source} returned {type(made).__name__}, and not a collective.")
    return made


def _defined(file: str) -> dict[str, Any]:
    if not Path(file).is_file():
        raise UsageError(f"{file}: there is no such file.")
    return runpy.run_path(file)


def _function(source: str, defined: dict[str, Any]) -> Callable[..., Any]:
    file, _, name = source.partition(":")
    function: Callable[..., Any] | None = defined.get(name)
    if not callable(function):
        raise UsageError(f"{file} has no function {name!r}.")
    return function


def _is_algorithm(name: str, thing: object) -> bool:
    return inspect.isfunction(thing) and thing.__module__ == algorithms.__name__ and not name.startswith("_")


def _written(function: Callable[..., Any], name: str, arguments: Sequence[int], options: dict[str, Any]) -> Program:
    made = _call(function, name, arguments, options)
    if not isinstance(made, Program):
        raise UsageError(f"{name} returned {type(made).__name__}, and not a program.")
    return made


def _call(function: Callable[..., Any], name: str, arguments: Sequence[int], options: dict[str, Any]) -> Any:
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise UsageError(f"{name}{signature}: {error}.") from None
    return function(*arguments, **options)
