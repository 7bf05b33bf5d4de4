"""The programs that a job loads from folders: reading, checks, and the selector rules for them.

Note [Which program runs]
The job requires the programs that lie directly in a folder: it does not start if one of them is for another number of
ranks. The programs in the subfolders ``2ranks``, ``4ranks`` and so on are optional: they serve process sets of that
size. A program has the name of its file. The selector tries the programs of one operation in the order of their
smallest size, then of their names, and runs the first one whose range of sizes fits. The user's own rules
(``HOROCACHE_SELECT``) come first.
A sum in another order than rank order differs from the sum of the built-in algorithms in the last bits. Programs with
such sums therefore reduce only integers and booleans, unless ``HOROCACHE_PROGRAMS_ANY_ORDER=1`` allows all types.
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
_BY_SIZE = ("allreduce", "broadcast", "reduce")  # operations whose size is the same on all ranks
_EXACT_TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "bool")

_logger = logging.getLogger("horocache.lang")


@dataclass(frozen=True)
class Installed:
    """A program of a job.

    Attributes:
        name: the program's name in rules and calls: ``backend="program/NAME"``.
        path: path of its file.
        program: the verified program.
        required: True if the job may start only with the program's number of ranks.
    """

    name: str
    path: str
    program: CompiledProgram
    required: bool


def read_folders(folders: str) -> list[Installed]:
    """Read all programs of a colon-separated list of folders, in the order in which the selector tries them.

    Raises:
        InvalidArgumentError: a folder or a file cannot be read, a program is wrong, two programs have one name, or a
            program has a name, an operation, sums or a range of sizes that a job cannot use.
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
            f"{path} is a program for {operation}, which is not an operation of a job; `horocache lang run` runs it."
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
        step.op in READS_DESTINATION
        for one in program.programs
        for thread_block in one.thread_blocks
        for step in thread_block.steps
    )


def rules_of(programs: Sequence[Installed], any_order: bool) -> str:
    """The selector rules for all programs, in the syntax of ``HOROCACHE_SELECT``."""
    return ";".join(rule for one in programs for rule in _rules(one, any_order))


def _rules(one: Installed, any_order: bool) -> Iterable[str]:
    program = one.program
    high = str(program.max_bytes) if program.max_bytes else ""
    sizes = f":{program.min_bytes}-{high}" if program.min_bytes or program.max_bytes else ""
    types = _types(program, any_order)
    for type_text in [""] if types is None else [f",{name}" for name in types]:
        yield f"{program.collective.name}{type_text},{program.ranks}ranks{sizes}=program/{one.name}"


def _types(program: CompiledProgram, any_order: bool) -> tuple[str, ...] | None:
    """The element types for which the selector may choose a program; None: all."""
    if any_order or program.rank_order or program.collective.name not in _REDUCING:
        return None
    return _EXACT_TYPES


def install(folders: str, any_order: bool, by_name: Sequence[tuple[str, CompiledProgram]] = ()) -> bytes:
    """Encode a job's programs and their selector rules for the core.

    Args:
        folders: the knob ``programs``: folders, separated by colons.
        any_order: the knob ``programs_any_order``: True if floating-point sums may be in another order than rank order.
        by_name: more programs, with their names, for process sets of any size; they run only where a call names them.

    Raises:
        InvalidArgumentError: a folder or a program cannot be used; the message names it and gives the reason.
    """
    programs = read_folders(folders)
    for one in programs:
        if _types(one.program, any_order) is not None:
            _logger.info(
                "%s adds up in another order than rank order, so it is chosen for whole numbers alone: "
                "HOROCACHE_PROGRAMS_ANY_ORDER=1 allows the rest",
                one.path,
            )
    taken = {name for name, _ in by_name}
    for one in programs:
        if one.name in taken:
            raise InvalidArgumentError(f"{one.path} has the name of a program of horocache; rename the file.")
    packed = [(one.name, one.program, one.required) for one in programs]
    packed += [(name, program, False) for name, program in by_name]
    return pack_library(packed, rules_of(programs, any_order), any_order)
