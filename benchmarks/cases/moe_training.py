"""Training of a small language model whose mixtures of experts lose nothing, or a part of their tokens.

The tokens that are lost are whole batches for another rank, drawn at random with a fixed seed
(:class:`benchmarks.moe_language.LosesBatches`); one more run has ranks that come late to their layers, and leaves
early. Exchanges that lose nothing must have the same loss, bit by bit, in every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks import moe_setup
from benchmarks.figures import OURS, Series
from benchmarks.moe_language import Curve, LosesBatches, Size, train
from benchmarks.peers import Rank
from benchmarks.timing import WrongResultError

LOST = f"{OURS}, batches lost"
LATE = f"{OURS}, late ranks"


def measure(
    rank: Rank, size: dict[str, Any], exchanges: list[str], fractions: list[float], unit_s: float, tau_s: float
) -> list[Series]:
    """Train once in each way.

    Args:
        rank: this rank.
        size: fields of Size.
        exchanges: those that lose nothing.
        fractions: of slots to lose.
        unit_s: the shortest delay of the late rank; 0: without this run.
        tau_s: how long a rank waits for it.
    """
    rank.horocache()
    made = Size(**size)
    ways: dict[str, Callable[[str], Curve]] = {
        f"{OURS}, {name}": partial(train, made, exchange=name) for name in exchanges
    }
    for fraction in fractions:
        exchange = partial(LosesBatches, kind="one_sided", fraction=fraction, seed=made.seed, calls=made.steps)
        ways[f"{LOST}: {100 * fraction:g} %"] = partial(train, made, exchange=exchange, tau=0.0)
    if unit_s:
        ways[LATE] = partial(_late, rank, made, unit_s, tau_s)
    series = []
    reference: list[float] = []
    for name, run in ways.items():
        rank.page.barrier()
        start = time.perf_counter()
        curve = run(name.replace(" ", "_"))
        seconds = time.perf_counter() - start
        if not reference:
            reference = curve.training
        elif not curve.dropped and curve.training != reference:
            raise WrongResultError(f"{name} loses nothing, and has other losses than the first way")
        detail = {"training": curve.training, "sent": curve.sent, "dropped": curve.dropped, "size": size}
        case = f"language model, {rank.size} ranks, {made.steps} steps"
        counters = {"ms_per_step": 1e3 * seconds / made.steps, "waited_share": curve.waited_s / seconds}
        series.append(Series(case, name, "nats per byte", [curve.held_out], counters=counters, detail=detail))
    return series


def _late(rank: Rank, size: Size, unit_s: float, tau_s: float, name: str) -> Curve:
    """Train with one rank that is late in each call."""
    calls = size.steps * size.blocks
    wait = iter(moe_setup.delays(rank.size, 1, calls, unit_s)[:, rank.rank].tolist())

    def exchange(options: Any) -> Any:
        from horocache.moe.exchanges import make_exchange

        return _Delayed(make_exchange("one_sided", options), wait)

    return train(size, name, exchange=exchange, epsilon=rank.size - 2, tau=tau_s)


class _Delayed:
    """An exchange to whose forward calls this rank comes late."""

    def __init__(self, inner: Any, wait: Iterator[float]) -> None:
        self._inner, self._wait = inner, wait
        self.fail, self.close = inner.fail, inner.close

    def run(self, call: Any) -> Any:
        """Run one exchange."""
        if not call.lossless:  # the backward pass always is
            time.sleep(next(self._wait, 0.0))
        return self._inner.run(call)
