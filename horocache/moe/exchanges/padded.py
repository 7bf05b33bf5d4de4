"""The exchange of GShard and DeepSpeed: parts of equal size, which are padded."""

from __future__ import annotations

import numpy as np

from horocache.collectives.numpy import collectives
from horocache.moe.exchanges.exchange import Memory
from horocache.moe.exchanges.synchronous import Synchronous
from horocache.moe.window import agree

__all__ = ["Padded", "pad", "strip"]

# Bytes in front of each part: the number of its rows that are not padding, an int64.
HEADER = 8
_MOST = np.iinfo(np.int64).max


class Padded(Synchronous):
    """One alltoall of equal parts moves the batches, and one the results.

    Each rank pads its part for each rank to the most rows that any rank has for any other in this call, as GShard
    (Lepikhin et al., ICLR 2021, section 3) and DeepSpeed-MoE (Rajbhandari et al., ICML 2022) pad to the capacity. The
    ranks agree on that number together with the success of their batches. A header has the rows that are true.

    Example: rank 0 sends 3 rows to rank 1, and all other parts of two ranks have 1 row. Four parts of 3 rows travel
    there, and four back.
    """

    def facts(self, rows: list[int], row_bytes: int | None) -> list[int]:
        """Return what gives the most rows of a part, and the least and the most bytes of a row, as minima."""
        if row_bytes is None:
            return [0, _MOST, _MOST]
        return [-max(rows), row_bytes, -row_bytes]

    def move(self, parts: Memory, rows: list[int], row_bytes: int, name: str) -> tuple[Memory, list[int]]:
        """Send each rank its part, padded; return the true rows that came, and their number from each rank."""
        most = self.check_row_bytes(row_bytes)
        padded = pad(parts, rows, row_bytes, most)
        splits = [len(padded) // self.size] * self.size
        received, _ = collectives.alltoall(padded, splits, name, self.process_set, backend=self.backend())
        return strip(received, self.size, row_bytes)

    def backend(self) -> str | None:
        """Return the backend of the alltoalls; None: the selector chooses it."""
        return None

    def check_row_bytes(self, row_bytes: int) -> int:
        """Return the most rows that a rank has for another in this call.

        Raises:
            MismatchError: ranks differ in the bytes of a row; all ranks raise it.
        """
        most, least_bytes, most_bytes = self.agreed
        if least_bytes != -most_bytes:
            agree(self.name, {"bytes of a row": row_bytes}, {}, self.process_set)
        return -most


def pad(parts: Memory, rows: list[int], row_bytes: int, most: int) -> Memory:
    """Return parts of ``most`` rows for all ranks, one after the other, each with its header; padding is zero."""
    padded = np.zeros((len(rows), HEADER + most * row_bytes), np.uint8)
    padded[:, :HEADER].view(np.int64)[:, 0] = rows
    start = 0
    for part, number in zip(padded, rows, strict=True):
        end = start + number * row_bytes
        part[HEADER : HEADER + number * row_bytes] = parts[start:end]
        start = end
    return padded.reshape(-1)


def strip(padded: Memory, ranks: int, row_bytes: int) -> tuple[Memory, list[int]]:
    """Return the true rows of padded parts, one part after the other, and the number of each part."""
    parts = padded.reshape(ranks, -1)
    rows: list[int] = parts[:, :HEADER].copy().view(np.int64)[:, 0].tolist()
    memory = np.concatenate(
        [part[HEADER : HEADER + number * row_bytes] for part, number in zip(parts, rows, strict=True)]
    )
    return memory, rows
