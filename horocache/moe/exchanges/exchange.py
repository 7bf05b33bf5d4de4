"""The interface of all exchanges of a mixture-of-experts layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Memory = npt.NDArray[np.uint8]


class Outcome(IntEnum):
    """The end of this rank's batch for another rank. The numbers are those of the core."""

    NONE = 0  # no tokens
    DELIVERED = 2  # the result came
    OWN_TIMEOUT = 3  # this rank left before the result came
    HOST_LEFT = 4  # the host left before it served the batch
    RING_FULL = 5  # the host was too many calls behind, so that the batch had no room
    LOST_RANK = 6  # the host died, or has left the job


class Call(Protocol):
    """One exchange as its caller sees it.

    Memory is one-dimensional, and valid only during the method that gets it. An exchange calls the methods in the
    thread that called :meth:`Exchange.run`.
    """

    rows: Sequence[int]  # of this rank's batch for each rank of the process set; 0: none
    row_bytes: int  # bytes of a row of a batch; equal on all ranks
    result_row_bytes: int  # bytes of a row of a result; equal on all ranks
    lossless: bool  # True: every batch is served and every result awaited

    def pack(self, peer: int, memory: Memory) -> None:
        """Write the batch for ``peer``; called once for each peer with rows."""

    def serve(self, peer: int, rows: int, batch: Memory, result: Memory) -> None:
        """Compute the result of the batch of ``peer``; called at most once for each peer, in any order."""

    def take(self, peer: int, result: Memory) -> None:
        """Read the result of the batch for ``peer``; called once for each batch that is delivered, in any order."""


@dataclass(frozen=True)
class Report:
    """The end of an exchange on this rank; all lists are by rank of the process set."""

    outcomes: list[Outcome]
    served: list[bool]  # the batches that this rank served
    waited: list[float]  # seconds that this rank waited for each rank


class Exchange(Protocol):
    """Moves batches of tokens to the ranks of their experts, and results back."""

    def run(self, call: Call) -> Report:
        """Run one exchange. All ranks of the process set call it, in the same order of layers.

        Raises:
            CollectiveError: another rank failed, or was lost; the message names it.
        """

    def fail(self, why: BaseException) -> None:
        """Run one exchange that fails on all ranks with ``why``, because this rank cannot make its batches."""

    def close(self) -> None:
        """Give the memory back. The rank takes part in no further exchange."""


def as_memory(memory: Any) -> Memory:
    """Return an array over a buffer of the core."""
    return np.frombuffer(memory, dtype=np.uint8)
