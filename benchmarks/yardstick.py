"""The yard-stick for bandwidth: the bandwidth of the memory system when all ranks copy at once.

Every rank copies n bytes of shared memory into a buffer of its own. The rank itself wrote one half last, and its
neighbour wrote the other half, because an allreduce must read data that other ranks wrote. The sources are rewritten
before every repetition, untimed.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from benchmarks.peers import Rank
from benchmarks.timing import Contestant

NAME = "yard-stick"


class Yardstick:
    """Shared sources of all ranks, and a private destination.

    Role: lives as long as the rank's case. The memory has no name in a file system: the other ranks open it through
    rank 0's descriptor, and the kernel frees it when the last rank ends.
    """

    def __init__(self, rank: Rank, most_bytes: int) -> None:
        path = rank.directory / "yardstick"
        if rank.rank == 0:
            descriptor = os.memfd_create("yardstick")
            os.ftruncate(descriptor, most_bytes * rank.size)
            path.write_text(f"/proc/{os.getpid()}/fd/{descriptor}", encoding="utf-8")
        rank.page.barrier()
        if rank.rank != 0:
            descriptor = os.open(path.read_text(encoding="utf-8"), os.O_RDWR)
        shared = mmap.mmap(descriptor, most_bytes * rank.size)
        rank.page.barrier()
        os.close(descriptor)
        words = np.frombuffer(shared, dtype=np.float32).reshape(rank.size, most_bytes // 4)
        self._own = words[rank.rank]
        self._neighbour = words[(rank.rank + 1) % rank.size]
        self._result = np.zeros(most_bytes // 4, dtype=np.float32)
        self._own[:] = 0.0  # touches every page outside the timed parts
        rank.page.barrier()
        self._seed = 0.0

    def contestant(self, size: int) -> Contestant:
        """Return a contestant that copies ``size`` bytes per rank."""
        count, half = size // 4, size // 8

        def prepare() -> None:
            self._seed += 1.0
            self._own[:count] = self._seed

        def run() -> None:
            np.copyto(self._result[:half], self._own[:half])
            np.copyto(self._result[half:count], self._neighbour[half:count])

        return Contestant(NAME, run, prepare)
