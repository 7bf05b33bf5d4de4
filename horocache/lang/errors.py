"""Errors of programs and program files. All are ``ValueError`` and name the user's line where there is one."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horocache.errors import HorocacheError

_PACKAGE = str(Path(__file__).parent) + os.sep


@dataclass(frozen=True)
class Location:
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def caller() -> Location:
    """The line of the innermost stack frame outside this package."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


class ProgramError(HorocacheError, ValueError):
    """Base of all errors in a program or its file.

    Attributes:
        location: the user's line; None if there is none, for example for a program from a file.
    """

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(message if location is None else f"{location}: {message}")
        self.location = location


class UsageError(ProgramError):
    """A call has an invalid argument, or is outside a program, in another program, nested, or after an error."""


class BadReferenceError(ProgramError):
    """The collective does not have this rank, buffer, index or count, or two counts do not match."""


class UninitializedChunkError(ProgramError):
    """The program uses a chunk that has never been written."""


class StaleReferenceError(ProgramError):
    """The program uses a reference whose chunk has been overwritten."""


class NoLinkError(ProgramError):
    """Two ranks exchange chunks, but the topology has no link between them."""


class PostconditionError(ProgramError):
    """The result of the program violates the postcondition of its collective.

    Attributes:
        wrong: one line for each wrong chunk: its place, the expected contents, the actual contents.
    """

    def __init__(self, program: str, collective: str, wrong: list[str], location: Location | None = None) -> None:
        shown = wrong if len(wrong) <= 8 else [*wrong[:8], f"and {len(wrong) - 8} more"]
        text = "\n  ".join(shown)
        super().__init__(f"program {program!r} does not implement {collective}; wrong results:\n  {text}", location)
        self.wrong = wrong


class DeadlockError(ProgramError):
    """Thread blocks wait for each other in a cycle, or for an event that never happens.

    Attributes:
        cycle: one line for each wait: the instruction, and the event that it waits for.
    """

    def __init__(self, message: str, cycle: list[str], location: Location | None = None) -> None:
        super().__init__(message, location)
        self.cycle = cycle


class RaceError(ProgramError):
    """Two instructions access the same chunk, one of them writes it, and no dependency orders them."""


class ScheduleError(ProgramError):
    """A schedule is impossible: a connection with two thread blocks, a thread block with two peers, too few slots."""


class VerificationError(ProgramError):
    """A compiled program has numbers out of range or messages that do not match, for example after an edit by hand."""


class ProgramFileError(ProgramError):
    """A file has no valid program, or one that cannot run here; the message names the file and the place in it."""
