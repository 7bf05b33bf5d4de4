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


def register() -> Any:
    """Make the backend known to horocache, by its name; return its class, whose attributes set the times.

    An operation takes ``latency_s``, and its bytes over ``bytes_per_s``. It sums float32 and float64.
    """
    import numpy as np

    from horocache.user_backends import Backend, register_backend

    class SlowWire(Backend):
        """Sums in shared memory, after which the thread sleeps until the time is over.

        A rank's file has two counters and two areas. The rank copies its elements into the first area and counts; when
        all ranks have counted, it adds its share of all ranks' elements, stores that in its second area and counts
        again; when all have, it copies all shares. A rank that has counted the next operation has copied all shares of
        this one, so that the areas are free when they are written. Stores become visible in their order, as on x86-64.
        """

        operations = ("allreduce",)
        reduced_dtypes = ("float32", "float64")
        latency_s = 0.0
        bytes_per_s = float("inf")

        def __init__(self, group: Any) -> None:
            super().__init__(group)
            with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="horocache-wire-") as file:
                os.ftruncate(file.fileno(), _COUNTERS + 2 * _MOST_BYTES)
                maps = [_map(name) for name in group.allgather_object(file.name)]
                group.allgather_object(None)  # all ranks have mapped the file, so that its name may go
            # By rank.
            self._copied = [np.frombuffer(each, np.int64, 1) for each in maps]
            self._added = [np.frombuffer(each, np.int64, 1, offset=64) for each in maps]
            self._inputs = [np.frombuffer(each, np.uint8, _MOST_BYTES, _COUNTERS) for each in maps]
            self._shares = [np.frombuffer(each, np.uint8, _MOST_BYTES, _COUNTERS + _MOST_BYTES) for each in maps]
            self._number = 0  # of the operation, from 1 on

        def start(self, call: Any) -> Any:
            """Begin an operation."""
            self._end = time.perf_counter() + self.latency_s + call.output.nbytes / self.bytes_per_s
            if call.reduce_op != "sum" or call.output.nbytes > _MOST_BYTES:
                raise ValueError(f"{call.reduce_op} of {call.output.nbytes} bytes; the wire sums up to {_MOST_BYTES}")
            self._number += 1
            rank, size, count = self.group.rank, self.group.size, call.output.size
            self._bounds = [count * each // size for each in range(size + 1)]
            self._views(self._inputs, call)[rank][:count] = call.output
            self._copied[rank][0] = self._number
            return call

        def test(self, work: Any) -> bool:
            """Do the next part of the sum, if it can be done; wait at the end until the time is over."""
            rank, bounds = self.group.rank, self._bounds
            if self._added[rank][0] < self._number:
                if not self._all(self._copied):
                    return False
                low, high = bounds[rank], bounds[rank + 1]
                inputs, share = self._views(self._inputs, work), self._views(self._shares, work)[rank][: high - low]
                share[:] = inputs[0][low:high]
                for other in inputs[1:]:
                    share += other[low:high]
                self._added[rank][0] = self._number
            if not self._all(self._added):
                return False
            for each, share in enumerate(self._views(self._shares, work)):
                low, high = bounds[each], bounds[each + 1]
                work.output[low:high] = share[: high - low]
            time.sleep(max(0.0, self._end - time.perf_counter()))
            return True

        def _views(self, areas: list[Any], call: Any) -> list[Any]:
            return [area.view(call.output.dtype) for area in areas]

        def _all(self, counters: list[Any]) -> bool:
            return all(counter[0] >= self._number for counter in counters)

    register_backend(NAME, SlowWire)
    return SlowWire


def _map(name: str) -> mmap.mmap:
    with Path(name).open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)
