"""Reads the file in which a failed rank notes the cause: see cpp_core/runtime/diagnostics/cause_note.h."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_MOST_BYTES = 8192


class Cause(NamedTuple):
    """The first failure of a rank."""

    follows: bool  # True if an operation failed because of another rank; False if this rank aborted the job
    at: float  # time of the failure, in seconds of the monotonic clock
    why: str


def read_cause(folder: Path, rank: int) -> Cause | None:
    """Return the cause that the rank noted in ``folder``; None if the note is missing or incomplete."""
    try:
        with (folder / f"cause.{rank}").open("rb") as file:
            head, _, why = file.read(_MOST_BYTES).decode(errors="backslashreplace").partition("\n")
        kind, at_ns = head.split()
        return Cause(kind == "follows", int(at_ns) / 1e9, why)
    except (OSError, ValueError):  # the note is missing, or the rank was killed while it wrote it
        return None
