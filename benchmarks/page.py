"""A page of shared memory with which the ranks of a benchmark start and stop together.

It belongs to no contestant, so that no contestant's warm caches or sleeping threads favour it.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

_LINE = 8  # words of 8 bytes per cache line
_TIMEOUT_S = 120.0  # longest wait at a barrier


class Page:
    """Barrier and one agreed word for the ranks of one host.

    Each rank writes only its own cache line, and rank 0 one more; every rank reads all lines. A waiting rank yields its
    core, so that there may be more ranks than cores.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # All ranks set the same length, so any rank may be the first.
            length = (size + 1) * _LINE * 8
            os.ftruncate(descriptor, length)
            self._map = mmap.mmap(descriptor, length)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("q")
        self._turn = 0

    def barrier(self, pause_s: float = 0.0) -> None:
        """Return when every rank has called it. Raises TimeoutError, which names the missing ranks.

        Args:
            pause_s: how long a waiting rank sleeps between two looks, so that it takes no time from ranks that work;
                0: it yields its core.
        """
        self._turn += 1
        words, turn = self._words, self._turn
        words[self.rank * _LINE] = turn
        deadline = 0.0
        for other in range(self.size):
            while words[other * _LINE] < turn:
                if pause_s:
                    time.sleep(pause_s)
                else:
                    os.sched_yield()
                deadline = deadline or time.monotonic() + _TIMEOUT_S
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"rank {self.rank} waited {_TIMEOUT_S:g} s at barrier {turn}: {self._late(turn)}"
                    )

    def agree(self, value: int) -> int:
        """Return rank 0's value, on all ranks."""
        if self.rank == 0:
            self._words[self.size * _LINE] = value
        self.barrier()
        agreed = self._words[self.size * _LINE]
        self.barrier()  # rank 0 writes the next value only after all ranks have read this one
        return agreed

    def _late(self, turn: int) -> str:
        late = [str(r) for r in range(self.size) if self._words[r * _LINE] < turn]
        return f"rank{'s' * (len(late) > 1)} {', '.join(late)} did not come"
