"""What can be wrong with a program, one class for each; all are ``ValueError`` and name the user's line."""

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
    """The innermost line that is not of this package."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


class ProgramError(HorocacheError, ValueError):
    """Base of what is wrong with a program or its file.

    Attributes:
        location: the user's line; None where there is none, as for a program from a file.
    """

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(message if location is None else f"{location}: {message}")
        self.location = location


class UsageError(ProgramError):
    """Something was called outside of a program, in another program, or after an error; or programs were nested."""


class BadReferenceError(ProgramError):
    """A rank, buffer, index or count that the collective does not have, or counts that do not go together."""


class UninitializedChunkError(ProgramError):
    """A chunk is used to which nothing has been written."""


class StaleReferenceError(ProgramError):
    """A reference is used after its chunk was overwritten."""


class NoLinkError(ProgramError):
    """Two ranks exchange chunks that the topology does not connect."""


class PostconditionError(ProgramError):
    """The program ends with something else than its collective promises.

    Attributes:
        wrong: one line for each slot that is wrong: where, what was expected, what there is.
    """

    def __init__(self, program: str, collective: str, wrong: list[str], location: Location | None = None) -> None:
        shown = wrong if len(wrong) <= 8 else [*wrong[:8], f"and {len(wrong) - 8} more"]
        text = "\n  ".join(shown)
        super().__init__(f"program {program!r} is no {collective}; what ends wrong:\n  {text}", location)
        self.wrong = wrong


class DeadlockError(ProgramError):
    """Strands wait for each other in a circle.

    Attributes:
        cycle: the instructions of the circle.
    """

    def __init__(self, message: str, cycle: list[str], location: Location | None = None) -> None:
        super().__init__(message, location)
        self.cycle = cycle


class RaceError(ProgramError):
    """Two instructions touch the same chunk, one of them writes it, and nothing orders them."""


class ScheduleError(ProgramError):
    """A placement that cannot be: two strands on one connection, a strand with two peers, more sends than slots."""


class VerificationError(ProgramError):
    """A compiled program has numbers out of range, or messages that do not fit: a file that was made by hand."""


class ProgramFileError(ProgramError):
    """A file is no program, or no program that can run here; names the file and the place in it."""
