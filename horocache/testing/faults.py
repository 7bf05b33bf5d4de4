"""Faults by name and place, so that a test injects exactly one thing instead of sleeping and hoping."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from horocache.errors import InvalidArgumentError


@dataclass(frozen=True)
class Fault:
    """What a rank does when it comes to a place.

    Args:
        at: the place, as the core names it: ``"start"``, ``"submit"``, ``"data"`` or ``"done"``.
        do: ``"kill"`` the process, ``"stop"`` it with SIGSTOP, or let the place fail with an ``"error"``.
        rank: who; None for every rank.
        step: at which passage of the place, counted from 1; None for the first.
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
        """The fault as the knob ``fault`` takes it: ``place[:rank[:count]]=what``."""
        place = self.at
        if self.rank is not None:
            place += f":{self.rank}"
        if self.step is not None:
            place += f":{self.step}"
        return f"{place}={self.do}"


def faults_text(faults: Iterable[Fault]) -> str:
    """Several faults as one value of the knob."""
    return ";".join(fault.text for fault in faults)
