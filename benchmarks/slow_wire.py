"""A backend whose operations take the time of a slow network, and little of the processor's, as beside a network card.

The sums run in memory that the ranks share, so that gloo's connections do not take the processors from the computation.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from pathlib import Path
from typing import Any

NAME = "wire"
_MOST_BYTES = 128 << 20  # of one sum; memory is taken as it is used
_COUNTERS = mmap.PAGESIZE  # bytes at the begin of a rank's file


class SharedSum:
    """Sums of arrays over the ranks of a host, one after the other.

    A rank's file has two counters and two areas. The rank copies its elements into the first area and counts; when all
    ranks have counted, it adds its share of all ranks' elements, stores that in its second area and counts again; when
    all have, it copies all shares. A rank that has counted the next sum has copied all shares of this one, so that the
    areas are free when they are written. Stores become visible in their order, as on x86-64.

    Role: owned by the backend; used by its thread.
    """

    def __init__(self, group: Any) -> None:
        import numpy as np

        self._rank, self._size = group.rank, group.size
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="horocache-wire-") as file:
            os.ftruncate(file.fileno(), _COUNTERS + 2 * _MOST_BYTES)
            maps = [_map(name) for name in group.allgather_object(file.name)]
            group.allgather_object(None)  # all ranks have mapped the file, so that its name may go
        # By rank.
        self._copied = [np.frombuffer(each, np.int64, 1) for each in maps]
        self._added = [np.frombuffer(each, np.int64, 1, offset=64) for each in maps]
        self._inputs = [np.frombuffer(each, np.uint8, _MOST_BYTES, _COUNTERS) for each in maps]
        self._shares = [np.frombuffer(each, np.uint8, _MOST_BYTES, _COUNTERS + _MOST_BYTES) for each in maps]
        self._number = 0  # of the sum, from 1 on

    def begin(self, array: Any) -> None:
        """Begin a sum, which replaces the elements."""
        self._number += 1
        self._array = array
        self._bounds = [array.size * each // self._size for each in range(self._size + 1)]
        self._views(self._inputs)[self._rank][: array.size] = array
        self._copied[self._rank][0] = self._number

    def advance(self) -> bool:
        """Do the next part of the sum, if it can be done; return True once the sum has ended."""
        if self._added[self._rank][0] < self._number:
            if not self._all(self._copied):
                return False
            low, high = self._bounds[self._rank : self._rank + 2]
            share = self._views(self._shares)[self._rank][: high - low]
            first, *others = self._views(self._inputs)
            share[:] = first[low:high]
            for other in others:
                share += other[low:high]
            self._added[self._rank][0] = self._number
        if not self._all(self._added):
            return False
        for rank, share in enumerate(self._views(self._shares)):
            low, high = self._bounds[rank : rank + 2]
            self._array[low:high] = share[: high - low]
        return True

    def _views(self, areas: list[Any]) -> list[Any]:
        return [area.view(self._array.dtype) for area in areas]

    def _all(self, counters: list[Any]) -> bool:
        return all(counter[0] >= self._number for counter in counters)


def register() -> Any:
    """Make the backend known to horocache, by its name; return its class, whose attributes set the times.

    An operation takes ``latency_s``, and its bytes over ``bytes_per_s``. It sums float32 and float64.
    """
    from horocache.user_backends import Backend, register_backend

    class SlowWire(Backend):
        """Sums in shared memory, after which the thread sleeps until the time is over."""

        operations = ("allreduce",)
        reduced_dtypes = ("float32", "float64")
        latency_s = 0.0
        bytes_per_s = float("inf")

        def __init__(self, group: Any) -> None:
            super().__init__(group)
            self._sum = SharedSum(group)

        def start(self, call: Any) -> Any:
            """Begin an operation."""
            if call.reduce_op != "sum" or call.output.nbytes > _MOST_BYTES:
                raise ValueError(f"{call.reduce_op} of {call.output.nbytes} bytes; the wire sums up to {_MOST_BYTES}")
            self._end = time.perf_counter() + self.latency_s + call.output.nbytes / self.bytes_per_s
            self._sum.begin(call.output)

        def test(self, work: Any) -> bool:
            """Go on with the sum; after it, wait until the time is over."""
            if not self._sum.advance():
                return False
            time.sleep(max(0.0, self._end - time.perf_counter()))
            return True

    register_backend(NAME, SlowWire)
    return SlowWire


def _map(name: str) -> mmap.mmap:
    with Path(name).open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)
