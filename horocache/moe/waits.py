"""How long ranks wait for each other in the calls of a layer."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from numbers import Real

import numpy as np
import numpy.typing as npt

from horocache.core.process_set import ProcessSet
from horocache.errors import InvalidArgumentError, MismatchError
from horocache.moe.window import agree

__all__ = ["RecentWaits", "gather_waits"]

Floats = npt.NDArray[np.float64]


class RecentWaits:
    """The seconds that a rank waited for each rank in recent calls of a layer.

    Role: owned by a layer; used by one thread at a time.

    Args:
        ranks: of the layer's process set.
        calls: how many calls are remembered.
    """

    def __init__(self, ranks: int, calls: int = 64) -> None:
        self._ranks = ranks
        self._calls: deque[list[float]] = deque(maxlen=calls)

    def __len__(self) -> int:
        """Return the number of calls in the record."""
        return len(self._calls)

    def add(self, waited: Sequence[float]) -> None:
        """Record a call: the seconds for each rank.

        Raises:
            InvalidArgumentError: there are other ranks in the process set.
        """
        if len(waited) != self._ranks:
            raise InvalidArgumentError(
                f"a call waited for {len(waited)} ranks, and the layer has {self._ranks}; a report has a value for each"
            )
        self._calls.append(list(waited))

    def quantile(self, quantile: float) -> Floats:
        """Return for each rank the smallest recorded wait that at least this part of the calls does not exceed.

        Args:
            quantile: from 0 to 1; 0.5 is the (lower) median, 1 the longest wait.

        Returns:
            float64, shape ``(ranks,)``, in seconds; zeros without calls.

        Raises:
            InvalidArgumentError: ``quantile`` is out of range.
        """
        check_quantile(quantile)
        if not self._calls:
            return np.zeros(self._ranks)
        ordered = np.sort(np.asarray(self._calls, np.float64), axis=0)
        row: Floats = ordered[max(int(np.ceil(quantile * len(ordered))) - 1, 0)]
        return row

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()


def check_quantile(quantile: float) -> None:
    """Raise InvalidArgumentError unless this is a number from 0 to 1."""
    if isinstance(quantile, bool) or not isinstance(quantile, Real) or not 0 <= quantile <= 1:
        raise InvalidArgumentError(f"a quantile is a number from 0 to 1, not {quantile!r}")


def gather_waits(name: str, waits: RecentWaits, quantile: float, process_set: ProcessSet) -> Floats:
    """Return the wait matrix of a layer. All ranks of the process set call it at the same place of their programs.

    Args:
        name: of the layer; equal on all ranks.
        waits: of this rank.
        quantile: of the recent calls, from 0 to 1; equal on all ranks.
        process_set: the ranks of the layer.

    Returns:
        float64, shape ``(n, n)``, equal on all ranks: row i has the seconds that rank i waited for each rank in a call.
        The diagonal is 0.

    Raises:
        InvalidArgumentError: ``quantile`` is out of range on all ranks. MismatchError: ranks differ in it.
    """
    try:
        row = waits.quantile(quantile)
    except InvalidArgumentError:
        _same_quantile(name, repr(quantile), [], process_set)
        raise
    return np.array(_same_quantile(name, repr(float(quantile)), row.tolist(), process_set), np.float64)


def _same_quantile(name: str, quantile: str, row: list[float], process_set: ProcessSet) -> list[list[float]]:
    """Compare what the ranks ask for, also on a rank that asks for something wrong: all ranks get an error then."""
    try:
        gathered = agree(name, {"quantile": quantile}, {"row": row}, process_set)
    except MismatchError as error:
        raise MismatchError(f"wait matrix: {error}") from None
    return [own["row"] for own in gathered]
