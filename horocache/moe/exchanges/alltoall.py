"""The exchange by the daemon's alltoall, which programs for Horovod use."""

from __future__ import annotations

from horocache.collectives.numpy import collectives
from horocache.moe.exchanges.exchange import Memory
from horocache.moe.exchanges.synchronous import Synchronous

__all__ = ["Alltoall"]


class Alltoall(Synchronous):
    """One alltoall moves the batches, and one the results. The number of rows of each rank travels with them."""

    def move(self, parts: Memory, rows: list[int], row_bytes: int, name: str) -> tuple[Memory, list[int]]:
        """Send each rank its part, a number of whole rows; return the parts that came, and the rows from each rank."""
        received, counts = collectives.alltoall(parts.reshape(-1, row_bytes), rows, name, self.process_set)
        return received.reshape(-1), [int(count) for count in counts]
