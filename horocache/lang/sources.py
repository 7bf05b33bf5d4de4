"""Programs that are named on a command line: algorithms of the library, functions and programs in a file of Python."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import algorithms
from .errors import UsageError
from .trace import Program


def write_program(source: str, arguments: Sequence[int], **options: Any) -> Program:
    """Write a program.

    Args:
        source: the name of an algorithm of the library; ``FILE.py:FUNCTION``, which returns a program; or ``FILE.py``
            with one program in it.
        arguments: of the function: numbers of ranks, of hosts, of ranks on a host.
        options: of ``Program``, for functions that take them.

    Raises:
        UsageError: there is no such thing, or it takes other arguments. ProgramError: the program is wrong.
    """
    if ".py" not in source:
        made = {name: one for name, one in vars(algorithms).items() if _is_algorithm(name, one)}
        if source not in made:
            raise UsageError(f"{source!r} is no file of Python and no algorithm; there are {', '.join(sorted(made))}.")
        return _call(made[source], source, arguments, options)
    file, _, name = source.partition(":")
    if not Path(file).is_file():
        raise UsageError(f"{file}: there is no such file.")
    defined = runpy.run_path(file)
    if name:
        if not callable(defined.get(name)):
            raise UsageError(f"{file} has no function {name!r}.")
        return _call(defined[name], source, arguments, options)
    programs = [one for one in defined.values() if isinstance(one, Program)]
    if len(programs) != 1:
        raise UsageError(f"{file} has {len(programs)} programs; name a function that returns one: {file}:FUNCTION.")
    if arguments or options:
        raise UsageError(f"{file} has a program and no function, so it takes neither numbers nor options.")
    return programs[0]


def _is_algorithm(name: str, thing: object) -> bool:
    return inspect.isfunction(thing) and thing.__module__ == algorithms.__name__ and not name.startswith("_")


def _call(function: Callable[..., Any], name: str, arguments: Sequence[int], options: dict[str, Any]) -> Program:
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise UsageError(f"{name}{signature}: {error}.") from None
    made = function(*arguments, **options)
    if not isinstance(made, Program):
        raise UsageError(f"{name} returned {type(made).__name__}, and not a program.")
    return made
