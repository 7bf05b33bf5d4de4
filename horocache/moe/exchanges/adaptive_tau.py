"""A countdown that follows the time that recent calls needed."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real

from horocache.errors import InvalidArgumentError

__all__ = ["AdaptiveTau", "Countdown", "Stay"]


@dataclass(frozen=True)
class AdaptiveTau:
    """The rule by which a rank chooses tau for its next call.

    Aristos (section 3) has a time-out tau_i for each rank i and leaves its length open. This rule is our own. The
    *stay* of a call is the time from the start of the countdown until the rank has left: all that it needed, if it left
    with nothing to wait for, and a lower bound of that, if the countdown ended the call. Then

        tau = margin * (the ``quantile`` of the stays of the last ``calls`` calls), between ``least`` and ``most``.

    A countdown that often ends too early makes itself longer, because its calls count with the whole of it: as soon as
    more than ``1 - quantile`` of the recent calls ended so, the next tau is at least ``margin`` times as long. A single
    late call in many leaves tau as it is, so that the rank that is late then loses its tokens.

    Example: with the defaults, stays of 60 calls of 2 ms and of 4 calls of 1 s have the 0.9-quantile 2 ms, so tau is
    4 ms. If 7 of 64 calls have ended by that countdown, the quantile is 4 ms, and tau becomes 8 ms.

    Each rank has its own record, and so its own tau; nothing is sent. The first ``first`` calls of a record lose
    nothing, because tau is infinite then.

    Args:
        quantile: of the stays, above 0 and at most 1.
        margin: at least 1.
        calls: number of recent calls in the record, at least 1.
        first: calls with an infinite tau, from 1 to ``calls``.
        least: the shortest tau, in seconds; at least 0.
        most: the longest tau, in seconds; at least ``least``.

    Raises:
        InvalidArgumentError: a value is out of range or not a number.
    """

    quantile: float = 0.9
    margin: float = 2.0
    calls: int = 64
    first: int = 8
    least: float = 0.001
    most: float = math.inf

    def __post_init__(self) -> None:
        _check("quantile", self.quantile, self.quantile > 0, 1, "above 0 and at most 1")
        _check("margin", self.margin, self.margin >= 1, math.inf, "at least 1")
        for name in ("calls", "first"):
            if not isinstance(getattr(self, name), int):
                raise InvalidArgumentError(f"{name} of AdaptiveTau is a number of calls, not {getattr(self, name)!r}")
        _check("calls", self.calls, self.calls >= 1, math.inf, "at least 1")
        _check("first", self.first, self.first >= 1, self.calls, f"from 1 to calls={self.calls}")
        _check("least", self.least, self.least >= 0, math.inf, "at least 0 seconds")
        _check("most", self.most, self.most >= self.least, math.inf, f"at least least={self.least} seconds")

    def of(self, stays: Sequence[float]) -> float:
        """Return tau, in seconds, after calls with these stays, in seconds."""
        if len(stays) < self.first:
            return math.inf
        position = math.ceil(self.quantile * len(stays)) - 1
        return min(max(self.margin * sorted(stays)[position], self.least), self.most)


def _check(name: str, value: float, low: bool, high: float, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not low or value > high:
        raise InvalidArgumentError(f"{name} of AdaptiveTau is {wanted}, not {value!r}")


class Countdown:
    """The countdowns of a rank's calls of one layer. Role: owned by the exchange; used by one thread at a time.

    Args:
        tau: a time in seconds, which may be infinite, or the rule that chooses one.
    """

    def __init__(self, tau: float | AdaptiveTau) -> None:
        self._tau = tau
        self._stays: deque[float] = deque(maxlen=tau.calls if isinstance(tau, AdaptiveTau) else 0)

    @property
    def tau(self) -> float:
        """The countdown of the next call, in seconds."""
        return self._tau.of(self._stays) if isinstance(self._tau, AdaptiveTau) else self._tau

    @property
    def adapts(self) -> bool:
        """True if a rule chooses tau."""
        return isinstance(self._tau, AdaptiveTau)

    def add(self, stay: float | None) -> None:
        """Record a call; None: its countdown did not start, so that it tells nothing."""
        if stay is not None:
            self._stays.append(stay)


class Stay:
    """How long a rank stays in one call after the start of its countdown.

    The countdown starts with the result of the rank's own batch and ``epsilon`` results of other ranks, or all that
    there are. Results that are lost before count in the core, and not here, where they are not seen; such a call tells
    nothing about the ranks that are late.

    Args:
        rows: of this rank's batch for each rank.
        own: this rank.
        epsilon: results of other ranks that start the countdown.
        clock: seconds of a steady clock.
    """

    def __init__(
        self, rows: Sequence[int], own: int, epsilon: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        routed = sum(number > 0 for peer, number in enumerate(rows) if peer != own)
        self._missing = min(epsilon, routed)
        self._own, self._clock = own, clock
        self._awaits_own = rows[own] > 0
        self._began: float | None = None
        self._begin_if_satisfied()

    def take(self, peer: int) -> None:
        """Note that the result of ``peer`` has come."""
        if peer == self._own:
            self._awaits_own = False
        else:
            self._missing -= 1
        self._begin_if_satisfied()

    def end(self) -> float | None:
        """Return the stay in seconds, now that the rank has left; None if the countdown did not start."""
        return None if self._began is None else self._clock() - self._began

    def _begin_if_satisfied(self) -> None:
        if self._began is None and self._missing <= 0 and not self._awaits_own:
            self._began = self._clock()
