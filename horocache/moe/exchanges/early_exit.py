"""When a rank may leave an exchange before it has all results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from horocache.errors import InvalidArgumentError
from horocache.moe.exchanges.adaptive_tau import AdaptiveTau

__all__ = ["EarlyExit"]

ADAPTIVE = "adaptive"


@dataclass(frozen=True)
class EarlyExit:
    """The early exit of a layer's forward calls (Aristos, section 3). The defaults lose no tokens.

    Args:
        epsilon: results of other ranks that a rank insists on before its countdown starts, from 0 to the number of
            other ranks. None: all of them.
        tau: the countdown, in seconds. Infinite: the rank stays until it has all results and has served all batches.
            An :class:`AdaptiveTau`: the rule by which each rank chooses it for each call; ``"adaptive"``: that rule
            with its defaults, which the attribute has then.
        limit: the most seconds of a call. None: the limit of the job.

    Raises:
        InvalidArgumentError: a value is out of range or not a number.
    """

    epsilon: int | None = None
    tau: float | AdaptiveTau | Literal["adaptive"] = math.inf
    limit: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None and (
            isinstance(self.epsilon, bool) or not isinstance(self.epsilon, Integral) or self.epsilon < 0
        ):
            raise InvalidArgumentError(f"epsilon is a number of ranks of at least 0, or None, not {self.epsilon!r}")
        if isinstance(self.tau, str) and self.tau == ADAPTIVE:
            object.__setattr__(self, "tau", AdaptiveTau())
        tau = self.tau
        if not isinstance(tau, AdaptiveTau) and (isinstance(tau, str) or not _is_number(tau) or not tau >= 0):
            raise InvalidArgumentError(
                f"tau is a time of at least 0 seconds, {ADAPTIVE!r}, or an AdaptiveTau, not {self.tau!r}"
            )
        if self.limit is not None and (not _is_number(self.limit) or not self.limit > 0):
            raise InvalidArgumentError(f"the limit of a call is a time of more than 0 seconds, not {self.limit!r}")

    def check_ranks(self, ranks: int, layer: str) -> None:
        """Check the values against the number of ranks of the layer.

        Raises:
            InvalidArgumentError: ``epsilon`` is greater than the number of other ranks.
        """
        if self.epsilon is not None and self.epsilon > ranks - 1:
            raise InvalidArgumentError(
                f"layer {layer!r} has epsilon={self.epsilon}, but each of its {ranks} ranks waits for at most "
                f"{ranks - 1} others; lower epsilon, or leave it out"
            )

    @property
    def rule(self) -> float | AdaptiveTau:
        """The countdown in seconds, or the rule that chooses it."""
        assert not isinstance(self.tau, str)  # of __post_init__
        return self.tau

    @property
    def drops(self) -> bool:
        """True if calls may drop tokens although every rank works."""
        return self.epsilon is not None or self.tau != math.inf or self.limit is not None


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
