"""Faults by rank and place, so that a test injects exactly one fault and needs no sleeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from horocache.errors import InvalidArgumentError


@dataclass(frozen=True)
class Fault:
    """A fault that is injected when a rank reaches a place in the core.

    Args:
        at: the place: ``"submit"`` (a request is submitted), ``"start"`` (a collective is about to start), ``"data"``
            (it has started and is not finished; a collective that waits for other ranks visits it again and again),
            ``"inline"`` (an inline allreduce is about to be folded) or ``"done"`` (it has finished).
        do: ``"kill"`` kills the process, ``"stop"`` stops it with SIGSTOP, ``"error"`` makes the rank abort the job.
        rank: the rank that the fault hits; None for every rank.
        step: the number of the visit of the place at which the fault occurs, from 1; None for the first visit. Requires
            a rank.

    Raises:
        InvalidArgumentError: ``do`` is unknown, or ``step`` is given without ``rank``.
    """

    at: str
    do: Literal["kill", "stop", "error"]
    rank: int | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        if self.do not in ("kill", "stop", "error"):
            raise InvalidArgumentError(f"a fault can kill, stop or error, not {self.do!r}.")
        if self.step is not None and self.rank is None:
            raise InvalidArgumentError("a fault with a step needs a rank.")

    @property
    def text(self) -> str:
        """The fault in the syntax of the knob ``fault``: ``place[:rank[:count]]=action``."""
        place = self.at
        if self.rank is not None:
            place += f":{self.rank}"
        if self.step is not None:
            place += f":{self.step}"
        return f"{place}={self.do}"


def faults_text(faults: Iterable[Fault]) -> str:
    """Return several faults as one value of the knob ``fault``."""
    return ";".join(fault.text for fault in faults)
