"""The programs that a job takes from folders: which there are, what for, and what the selector is told of them.

Note [Which program runs]
A folder's own files are for the job's number of ranks: the job does not start with others. Those in its subfolders
``2ranks``, ``4ranks`` and so on are taken by process sets of that size, if there are any. A program is called by the
name of its file. Programs of one operation are asked in the order of their least size, then of their names, and the
first whose sizes fit runs; the user's own rules (``HOROCACHE_SELECT``) come before.
Sums in another order than rank order differ from those of the built-in algorithms in the last bits. So programs that
make such sums reduce only whole numbers, until ``HOROCACHE_PROGRAMS_ANY_ORDER=1`` allows the rest.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from horocache.errors import InvalidArgumentError
from horocache.lang.errors import ProgramError
from horocache.lang.formats import program_json
from horocache.lang.formats.core_words import OPERATIONS, pack_library
from horocache.lang.program.compiled_program import CompiledProgram
from horocache.lang.program.instruction_dag import READS_DESTINATION

_SUBFOLDER = re.compile(r"([1-9][0-9]*)ranks")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,80}")
_REDUCING = ("allreduce", "reduce", "reducescatter")
_BY_SIZE = ("allreduce", "broadcast", "reduce")  # all ranks have as much
_EXACT_TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "bool")

_logger = logging.getLogger("horocache.lang")


@dataclass(frozen=True)
class Installed:
    """A program of a job.

    Attributes:
        name: by which rules and calls name it: ``backend="program/NAME"``.
        path: of its file.
        program: proved.
        required: the job does not start if it is for another number of ranks.
    """

    name: str
    path: str
    program: CompiledProgram
    required: bool


def read_folders(folders: str) -> list[Installed]:
    """All programs of folders that are separated by colons, in the order in which they are asked.

    Raises:
        InvalidArgumentError: a folder or a file cannot be read, a program is not right, two have one name, or one is
            for an operation that nobody can call or choose.
    """
    found: dict[str, Installed] = {}
    for folder in filter(None, folders.split(os.pathsep)):
        for one in _read_folder(Path(folder)):
            other = found.setdefault(one.name, one)
            if other is not one:
                raise InvalidArgumentError(
                    f"HOROCACHE_PROGRAMS has two programs of one name: {other.path} and {one.path}. Rename a file."
                )
    return sorted(found.values(), key=lambda one: (one.program.collective.name, one.program.min_bytes, one.name))


def _read_folder(folder: Path) -> Iterable[Installed]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InvalidArgumentError(
            f"HOROCACHE_PROGRAMS={folder} cannot be read: {error.strerror}. Name a folder of compiled programs."
        ) from None
    for entry in entries:
        if entry.name.endswith(program_json.SUFFIX):
            yield _read(entry, required=True)
        elif match := _SUBFOLDER.fullmatch(entry.name):
            for path in sorted(entry.glob("*" + program_json.SUFFIX)):
                one = _read(path, required=False)
                if one.program.ranks != int(match[1]):
                    raise InvalidArgumentError(f"{path} is for {one.program.ranks} ranks, in a folder for {match[1]}.")
                yield one


def _read(path: Path, required: bool) -> Installed:
    try:
        program = program_json.load(path)
    except ProgramError as error:
        raise InvalidArgumentError(f"HOROCACHE_PROGRAMS: {error}") from None
    name = path.name.removesuffix(program_json.SUFFIX)
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"{path}: call it by letters, digits, '_', '.' and '-', which rules can name.")
    operation = program.collective.name
    if operation not in OPERATIONS:
        raise InvalidArgumentError(
            f"{path} is a program for {operation}, which is no operation of a job; `horocache lang run` runs it."
        )
    if operation not in _REDUCING and _adds_up(program):
        raise InvalidArgumentError(f"{path} adds up chunks, and {operation} has no sum; leave that out of it.")
    if operation not in _BY_SIZE and (program.min_bytes or program.max_bytes):
        raise InvalidArgumentError(
            f"{path} is for a range of sizes; those of {operation} differ by rank, so it cannot be chosen by size. "
            "Compile it without min_bytes and max_bytes."
        )
    return Installed(name, str(path), program, required)


def _adds_up(program: CompiledProgram) -> bool:
    return any(
        step.op in READS_DESTINATION for one in program.programs for strand in one.strands for step in strand.steps
    )


def rules_of(programs: Sequence[Installed], any_order: bool) -> str:
    """Rules of the selector for all of them; see ``HOROCACHE_SELECT``."""
    return ";".join(rule for one in programs for rule in _rules(one, any_order))


def _rules(one: Installed, any_order: bool) -> Iterable[str]:
    program = one.program
    high = str(program.max_bytes) if program.max_bytes else ""
    sizes = f":{program.min_bytes}-{high}" if program.min_bytes or program.max_bytes else ""
    types = _types(program, any_order)
    for type_text in [""] if types is None else [f",{name}" for name in types]:
        yield f"{program.collective.name}{type_text},{program.ranks}ranks{sizes}=program/{one.name}"


def _types(program: CompiledProgram, any_order: bool) -> tuple[str, ...] | None:
    """The element types that a program may be chosen for; None: all."""
    if any_order or program.rank_order or program.collective.name not in _REDUCING:
        return None
    return _EXACT_TYPES


def install(folders: str, any_order: bool) -> bytes:
    """What the core of a job is given for the knobs ``programs`` and ``programs_any_order``.

    Raises:
        InvalidArgumentError: as for :func:`read_folders`.
    """
    programs = read_folders(folders)
    for one in programs:
        if _types(one.program, any_order) is not None:
            _logger.info(
                "%s adds up in another order than rank order, so it is chosen for whole numbers alone: "
                "HOROCACHE_PROGRAMS_ANY_ORDER=1 allows the rest",
                one.path,
            )
    return pack_library(
        [(one.name, one.program, one.required) for one in programs], rules_of(programs, any_order), any_order
    )
