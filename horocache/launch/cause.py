"""What a failed rank has said about the reason: see cpp_core/runtime/cause_note.h."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_MOST_BYTES = 8192


class Cause(NamedTuple):
    """The first thing that went wrong on a rank."""

    follows: bool  # an operation failed because of another rank; else this rank aborted the job
    at: float  # seconds of the monotonic clock
    why: str


def read_cause(folder: Path, rank: int) -> Cause | None:
    """What the rank has said; None if it has said nothing."""
    try:
        with (folder / f"cause.{rank}").open("rb") as file:
            head, _, why = file.read(_MOST_BYTES).decode(errors="backslashreplace").partition("\n")
        kind, at_ns = head.split()
        return Cause(kind == "follows", int(at_ns) / 1e9, why)
    except (OSError, ValueError):  # none, or the rank was killed while it wrote
        return None
