"""The operations that are measured: their tensors, their calls by the NumPy API, and the check of their results.

Note [Size of an operation]
The size is that of the largest tensor of a rank, in bytes, as the selector counts it where it chooses by size: the
tensor of an allreduce, a broadcast and a reduce, and the tensor of which a reducescatter returns a share. For the
others it is the result of an allgather and, on the root, of a gather; a rank's tensor of an alltoall and, on the root,
of a scatter. Elements are float32. An alltoall and a scatter have a multiple of the number of ranks, rounded up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import horocache as hc
from horocache.tuning.plan import ELEMENT_BYTES, Unit

Array = npt.NDArray[np.float32]


class Prepared(NamedTuple):
    """An operation with its tensors.

    Attributes:
        start: starts it, with a name and a backend, and returns its handle.
        wrong: returns the number of wrong elements of its result.
    """

    start: Callable[[str, str], int]
    wrong: Callable[[Any], int]


def prepare(unit: Unit, index: int, *, values: bool) -> Prepared:
    """Make the tensors of an operation on this rank.

    Args:
        unit: operation and size.
        index: number of the operation in its set; the sets' operations have different values.
        values: True for values whose result can be checked; False for zeros, which stay zeros.
    """
    count = max(1, unit.bytes // ELEMENT_BYTES)
    return _PREPARE[unit.op](_Maker(count, index, values))


class _Maker:
    """Makes the values of all ranks: element ``i`` of rank ``r`` is ``(i + r + index) % 3``, a small whole number."""

    def __init__(self, count: int, index: int, values: bool) -> None:
        self.count = count
        self.rank, self.ranks = hc.rank(), hc.size()
        self._index, self._values = index, values

    def rounded(self) -> int:
        """The number of elements, rounded up to a multiple of the number of ranks."""
        return -(-self.count // self.ranks) * self.ranks

    def of_rank(self, rank: int, count: int) -> Array:
        """The tensor of a rank."""
        return ((np.arange(count) + rank + self._index) % 3).astype(np.float32)

    def mine(self, count: int) -> Array:
        """This rank's tensor: its values, or zeros in memory that has been written to."""
        if self._values:
            return self.of_rank(self.rank, count)
        zeros = np.empty(count, np.float32)
        zeros.fill(0)
        return zeros

    def sum(self, count: int) -> Array:
        """The sum over all ranks."""
        total = self.of_rank(0, count)
        for rank in range(1, self.ranks):
            total += self.of_rank(rank, count)
        return total

    def share(self, rank: int) -> slice:
        """The elements of a rank where the first ranks get one more."""
        least, more = divmod(self.count, self.ranks)
        begin = rank * least + min(rank, more)
        return slice(begin, begin + least + (rank < more))

    def gathered(self) -> Array:
        """The shares of all ranks, in rank order."""
        shares = [self.share(rank) for rank in range(self.ranks)]
        return np.concatenate(
            [self.of_rank(rank, part.stop - part.start) for rank, part in enumerate(shares)], dtype=np.float32
        )

    def own_share(self) -> Array:
        """This rank's tensor, of the size of its share."""
        part = self.share(self.rank)
        return self.mine(part.stop - part.start)


def _compare(expected: Callable[[], Array]) -> Callable[[Any], int]:
    def wrong(result: Any) -> int:
        got, right = np.asarray(result), expected()
        return int(np.count_nonzero(got != right)) if got.shape == right.shape else right.size

    return wrong


def _on_root(make: _Maker, expected: Callable[[], Array]) -> Callable[[Any], int]:
    return _compare(expected) if make.rank == 0 else lambda result: int(result is not None)


def _allreduce(make: _Maker) -> Prepared:
    data = make.mine(make.count)
    return Prepared(
        lambda name, backend: hc.allreduce_async_(data, op=hc.Sum, name=name, backend=backend),
        _compare(lambda: make.sum(make.count)),
    )


def _broadcast(make: _Maker) -> Prepared:
    data = make.mine(make.count)
    return Prepared(
        lambda name, backend: hc.broadcast_async_(data, root_rank=0, name=name, backend=backend),
        _compare(lambda: make.of_rank(0, make.count)),
    )


def _reduce(make: _Maker) -> Prepared:
    data = make.mine(make.count)
    return Prepared(
        lambda name, backend: hc.reduce_async(data, root_rank=0, op=hc.Sum, name=name, backend=backend),
        _on_root(make, lambda: make.sum(make.count)),
    )


def _reducescatter(make: _Maker) -> Prepared:
    data = make.mine(make.count)
    return Prepared(
        lambda name, backend: hc.reducescatter_async(data, op=hc.Sum, name=name, backend=backend),
        _compare(lambda: make.sum(make.count)[make.share(make.rank)]),
    )


def _allgather(make: _Maker) -> Prepared:
    data = make.own_share()
    return Prepared(lambda name, backend: hc.allgather_async(data, name=name, backend=backend), _compare(make.gathered))


def _gather(make: _Maker) -> Prepared:
    data = make.own_share()
    return Prepared(
        lambda name, backend: hc.gather_async(data, root_rank=0, name=name, backend=backend),
        _on_root(make, make.gathered),
    )


def _alltoall(make: _Maker) -> Prepared:
    count = make.rounded()
    data, share = make.mine(count), count // make.ranks

    def expected() -> Array:
        mine = slice(make.rank * share, (make.rank + 1) * share)
        return np.concatenate([make.of_rank(rank, count)[mine] for rank in range(make.ranks)], dtype=np.float32)

    compare = _compare(expected)
    return Prepared(
        lambda name, backend: hc.alltoall_async(data, name=name, backend=backend), lambda result: compare(result[0])
    )


def _scatter(make: _Maker) -> Prepared:
    count = make.rounded()
    data, share = make.mine(count if make.rank == 0 else 0), count // make.ranks
    mine = slice(make.rank * share, (make.rank + 1) * share)
    return Prepared(
        lambda name, backend: hc.scatter_async(data, root_rank=0, name=name, backend=backend),
        _compare(lambda: make.of_rank(0, count)[mine]),
    )


_PREPARE: dict[str, Callable[[_Maker], Prepared]] = {
    "allreduce": _allreduce,
    "allgather": _allgather,
    "broadcast": _broadcast,
    "reducescatter": _reducescatter,
    "alltoall": _alltoall,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
}
