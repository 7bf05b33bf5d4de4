"""The links between ranks, measured by the exchange of a layer: what placement needs to know of a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError
from horocache.moe.exchanges import EarlyExit, Exchange, Options, make_exchange
from horocache.moe.exchanges.exchange import Memory
from horocache.moe.exchanges.registry import chosen_exchange
from horocache.moe.window import agree

__all__ = ["Links", "fit_link", "measure_links"]

Floats = npt.NDArray[np.float64]

_ROW_BYTES = 64
_SIZES = (64, 4 << 10, 64 << 10, 256 << 10)
# Where a fit of noisy times gives no positive value: far below that of any link.
_LEAST_ALPHA_S = 1e-9
_LEAST_BETA_S = 1e-14


@dataclass(frozen=True, eq=False)
class Links:
    """Latency and inverse bandwidth between each two ranks, as :class:`horocache.moe.placement.Topology` takes them.

    Attributes:
        alpha_s: float64, shape (n, n). The time of an empty message, in seconds; symmetric, 0 on the diagonal.
        beta_s_per_byte: float64, shape (n, n). The time that each byte adds, in seconds; symmetric, 0 on the diagonal.
    """

    alpha_s: Floats
    beta_s_per_byte: Floats


def fit_link(sizes: Sequence[int], seconds: npt.ArrayLike) -> tuple[float, float]:
    """Return alpha and beta of a link: the line ``alpha + beta * size`` with the least squares of relative errors.

    Errors are relative, because the times of the largest messages would otherwise decide alpha alone. Both results are
    above 0: if the line has no positive slope, beta is that of an almost infinite bandwidth and alpha the mean time; if
    it has no positive value at 0, it goes through (almost) 0.

    Args:
        sizes: shape (m,), in bytes; at least two are different.
        seconds: shape (m, repeats), the times of messages of each size; their medians count.

    Example: medians of 2 us for 1000 bytes and 3 us for 2000 bytes give an alpha of 1 us and a beta of 1 ns.
    """
    size = np.asarray(sizes, np.float64)
    times = np.maximum(np.median(np.asarray(seconds, np.float64), axis=1), _LEAST_ALPHA_S)
    weighted = np.stack([np.ones_like(size), size], axis=1) / times[:, None]
    alpha, beta = (float(value) for value in np.linalg.lstsq(weighted, np.ones_like(times), rcond=None)[0])
    if beta <= 0:
        return max(float(times.mean()), _LEAST_ALPHA_S), _LEAST_BETA_S
    if alpha <= 0:
        slope = size / times
        return _LEAST_ALPHA_S, max(float(slope.sum() / (slope @ slope)), _LEAST_BETA_S)
    return alpha, beta


def measure_links(
    process_set: ProcessSet = global_process_set,
    exchange: str | None = None,
    sizes: Sequence[int] = _SIZES,
    repeats: int = 11,
) -> Links:
    """Measure the links between the ranks of a process set; all of them call it at the same place of their programs.

    The ranks exchange tokens as layers do, so that alpha and beta are those of the windows, or of the other exchange,
    that layers use. In each exchange one pair plays ping-pong: a rank writes a batch of ``sizes[i]`` bytes, the other
    one reads it and writes as large a result, and the first one reads that. Half of this time is that of a message. The
    other ranks take part with empty batches. One more exchange of each size comes first and does not count.

    For example::

        links = measure_links()
        topology = Topology(links.alpha_s, links.beta_s_per_byte, rates=[2000.0] * n, memory=[16] * n)
        sharding = shard(topology, workload)

    Args:
        process_set: the ranks to measure.
        exchange: one of :func:`horocache.moe.exchanges.exchange_names`; None: that of the knob ``moe_exchange``.
        sizes: bytes of messages, multiples of 64; at least two sizes. The windows have room for the largest between
            each two ranks.
        repeats: exchanges of each size and pair, of which the median counts.

    Returns:
        The same arrays on all ranks, for the ranks of the process set in their order.

    Raises:
        InvalidArgumentError: a size or ``repeats`` is out of range. MismatchError: ranks differ in an argument. The
            errors of the exchange.
    """
    _check_arguments(sizes, repeats)
    ranks, rank = process_set.size(), process_set.rank()
    facts = {"exchange": exchange, "sizes": list(sizes), "repeats": repeats}
    agree("links", facts, {}, process_set)
    row = (_ROW_BYTES, _ROW_BYTES)
    moved = make_exchange(
        chosen_exchange(exchange, EarlyExit()),
        Options("links", process_set, (True,) * ranks, *row, max_tokens=max(sizes) // _ROW_BYTES),
    )
    found: dict[tuple[int, int], tuple[float, float]] = {}
    try:
        for pair in combinations(range(ranks), 2):
            times = [_ping_pongs(moved, pair, rank, ranks, size, repeats) for size in sizes]
            if rank == pair[0]:
                found[pair] = fit_link(sizes, times)
    finally:
        moved.close()
    alpha, beta = np.zeros((ranks, ranks)), np.zeros((ranks, ranks))
    for own in agree("links", {}, {"found": found}, process_set):
        for (one, other), (latency, per_byte) in own["found"].items():
            alpha[one, other] = alpha[other, one] = latency
            beta[one, other] = beta[other, one] = per_byte
    return Links(alpha, beta)


def _check_arguments(sizes: Sequence[int], repeats: int) -> None:
    wrong = [
        size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or size < 1 or size % _ROW_BYTES
    ]
    if wrong or len(set(sizes)) < 2:
        raise InvalidArgumentError(
            f"sizes has {list(sizes)}; give at least two different numbers of bytes that are multiples of {_ROW_BYTES}"
        )
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InvalidArgumentError(f"repeats is a number of exchanges of at least 1, not {repeats!r}")


def _ping_pongs(
    exchange: Exchange, pair: tuple[int, int], rank: int, ranks: int, size: int, repeats: int
) -> list[float]:
    """Run the exchanges of a pair with one size; return the seconds of a message in each, on the first rank of both."""
    rows = [0] * ranks
    if rank == pair[0]:
        rows[pair[1]] = size // _ROW_BYTES
    seconds = []
    for _ in range(repeats + 1):
        call = _PingPong(rows)
        exchange.run(call)
        seconds.append(call.seconds / 2)
    return seconds[1:]


class _PingPong:
    """An exchange whose batch comes back as it is; see :class:`horocache.moe.exchanges.Call`."""

    row_bytes = result_row_bytes = _ROW_BYTES
    lossless = True

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = rows
        self.seconds = 0.0  # from the first byte of the batch to the last one of the result
        self._began = 0.0

    def pack(self, peer: int, memory: Memory) -> None:
        """Write the batch."""
        self._began = time.perf_counter()
        memory[:] = 1

    def serve(self, peer: int, rows: int, batch: Memory, result: Memory) -> None:
        """Read the batch, and write as many bytes."""
        result[:] = batch.copy()

    def take(self, peer: int, result: Memory) -> None:
        """Read the result."""
        result.copy()
        self.seconds = time.perf_counter() - self._began
