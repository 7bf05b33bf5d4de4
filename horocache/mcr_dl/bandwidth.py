"""Throughput and bus bandwidth of operations, by the factors of MCR-DL's benchmarks, which are those of nccl-tests."""

from __future__ import annotations

from typing import NamedTuple

_GATHERS = ("all_gather", "all_gatherv", "all_gather_coalesced")
_SHARED = ("all_to_all", "all_to_all_single", "all_to_allv", "reduce_scatter", "reduce_scatterv")
_REDUCES = ("all_reduce", "all_reduce_coalesced")


class Bandwidths(NamedTuple):
    """In Gbit/s (10^9 bits)."""

    tput: float  # bytes of the operation per time; of an all_reduce twice the bytes
    busbw: float  # the bytes that one link must carry per time, whatever the number of ranks


def bandwidths(op: str, size: int, seconds: float, ranks: int) -> Bandwidths:
    """Return the bandwidths of an operation.

    For example, an all_reduce of 1,000,000 bytes by 4 ranks in 1 ms has a throughput of 2 * 8e6 bit / 1e-3 s =
    16 Gbit/s and a bus bandwidth of 8e6 bit * 2 * 3/4 / 1e-3 s = 12 Gbit/s.

    Args:
        op: the public name.
        size: bytes of this rank's tensor; for ``all_gather`` of the part that it sends.
        seconds: the time that it took.
        ranks: the size of the group.
    """
    if seconds <= 0:
        return Bandwidths(0.0, 0.0)
    rate = size * 8 / seconds / 1e9
    share = (ranks - 1) / ranks
    if op in _REDUCES:
        return Bandwidths(2 * rate, 2 * share * rate)
    if op in _GATHERS:
        return Bandwidths(ranks * rate, share * ranks * rate)
    if op in _SHARED:
        return Bandwidths(rate, share * rate)
    return Bandwidths(rate, rate)


def trimmed_mean(values: list[float]) -> float:
    """Return the mean of what is left when a tenth of the values is taken away at both ends.

    Of 20 values the two lowest and the two highest are left out; of fewer than 10 none.
    """
    ordered = sorted(values)
    cut = len(ordered) // 10
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)
