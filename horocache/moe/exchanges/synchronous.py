"""The parts that all synchronous exchanges have in common: their order, and errors that reach every rank."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from horocache.collectives.api import Min
from horocache.collectives.numpy import collectives
from horocache.collectives.object_collectives import broadcast_object
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import InputFailedError, InternalError, InvalidArgumentError
from horocache.moe.exchanges.exchange import Call, Memory, Outcome, Report
from horocache.moe.exchanges.trace import traced

__all__ = ["Synchronous"]


class Synchronous(ABC):
    """An exchange in four steps: agree that all ranks have batches, move them, agree that all are served, move results.

    An agreement is an allreduce of one integer, which travels with the round that agrees on it. Example: rank 2 cannot
    make its batches and contributes 2, the others contribute the number of ranks. All ranks get the minimum, 2, and
    rank 2 broadcasts its reason, so that every rank raises an error with it and no rank waits for a batch.

    An exchange that needs the minimum of other numbers over the ranks adds them to the agreements: see :meth:`facts`.

    The names of the operations are those of the layer, so that the response cache answers from the second call on.

    Role: owned by a layer; used by one thread at a time.

    Args:
        name: of the layer; equal on all ranks.
        process_set: the ranks of the layer. One rank alone does not communicate.
    """

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self.name = name
        self.process_set = process_set
        self.size = process_set.size()
        self.rank = process_set.rank()
        self._global_rank = context.rank()
        self._closed = False
        self.round = 0  # the number of the last call
        self.agreed: list[int] = []  # the minimum of each fact over the ranks; of the latest agreement

    @traced
    def run(self, call: Call) -> Report:
        """Run one exchange; all ranks of the process set call it.

        Raises:
            InvalidArgumentError: the exchange was closed.
            InputFailedError: another rank could not make its batches, or could not serve one; names it and its reason.
            MismatchError: ranks differ in the bytes of a row. The errors of the daemon, such as PeerLostError.
        """
        if self._closed:
            raise InvalidArgumentError(f"the exchange of layer {self.name!r} was closed; make another one")
        self.round += 1
        names = f"moe.{self.name}.{'lossless' if call.lossless else 'forward'}"
        rows = list(call.rows)
        batches, parts = _parts(rows, call.row_bytes)
        with _SharedFailure(self, rows, call.row_bytes):
            for peer in _with_rows(rows):
                call.pack(peer, parts[peer])
        start = time.monotonic()
        if self.size > 1:
            batches, served_rows = self.move(batches, rows, call.row_bytes, f"{names}.batches")
        else:
            served_rows = rows
        moved = time.monotonic()
        parts = _split(batches, served_rows, call.row_bytes)
        results, result_parts = _parts(served_rows, call.result_row_bytes)
        with _SharedFailure(self, served_rows, call.result_row_bytes):
            for peer in _with_rows(served_rows):
                call.serve(peer, served_rows[peer], parts[peer], result_parts[peer])
        served = time.monotonic()
        if self.size > 1 and call.result_row_bytes:  # equal on all ranks
            results, returned = self.move(results, served_rows, call.result_row_bytes, f"{names}.results")
            self._check_returned(rows, returned)
        waited = moved - start + time.monotonic() - served
        result_parts = _split(results, rows, call.result_row_bytes)
        for peer in _with_rows(rows):
            call.take(peer, result_parts[peer])
        return Report(
            [Outcome.DELIVERED if number else Outcome.NONE for number in rows],
            [number > 0 for number in served_rows],
            [0.0 if peer == self.rank else waited for peer in range(self.size)],
        )

    def fail(self, why: BaseException) -> None:
        """Make the exchange that the other ranks run fail on them with ``why``; the caller raises ``why`` itself."""
        if self.size > 1:
            self.agree(why, self.facts([], None))

    def close(self) -> None:
        """End the use of the exchange; it has memory only while it runs."""
        self._closed = True

    @abstractmethod
    def move(self, parts: Memory, rows: list[int], row_bytes: int, name: str) -> tuple[Memory, list[int]]:
        """Send each rank its part, a number of whole rows; return the parts that came, and the rows from each rank."""

    def facts(self, rows: list[int], row_bytes: int | None) -> list[int]:
        """Return numbers whose minimum over all ranks :meth:`move` needs; equally many in each call.

        Args:
            rows: that this rank sends to each rank.
            row_bytes: bytes of a row. None: this rank has failed and sends nothing.
        """
        return []

    def _check_returned(self, sent: list[int], returned: list[int]) -> None:
        for peer, (rows, back) in enumerate(zip(sent, returned, strict=True)):
            if rows != back:
                raise InternalError(
                    f"rank {self._global_rank} sent {rows} rows of layer {self.name!r} to rank "
                    f"{self.process_set.ranks[peer]}, which answered with {back}; please report it"
                )

    def agree(self, why: BaseException | None, facts: list[int]) -> None:
        """Tell the other ranks whether this rank failed, and agree on facts.

        Raises:
            InputFailedError: another rank failed.
        """
        mine = self.rank if why is not None else self.size
        name = f"moe.{self.name}.agreement"
        own = np.array([mine, *facts], np.int64)
        lowest, *agreed = collectives.allreduce(own, op=Min, name=name, process_set=self.process_set).tolist()
        self.agreed = agreed
        if lowest == self.size:
            return
        failed = self.process_set.ranks[lowest]
        text = None if why is None else f"{type(why).__name__}: {why}"
        reason = broadcast_object(text, failed, f"moe.{self.name}.failure", self.process_set)
        if failed != self._global_rank and why is None:
            raise InputFailedError(
                f"rank {failed} failed in layer {self.name!r} of a mixture of experts, so rank {self._global_rank} "
                f"cannot go on with this call: {reason}"
            )


def _with_rows(rows: list[int]) -> list[int]:
    """Return the ranks whose part has rows."""
    return [peer for peer, number in enumerate(rows) if number]


def _parts(rows: list[int], row_bytes: int) -> tuple[Memory, list[Memory]]:
    """Return memory for the parts of all ranks, one after the other, and the part of each rank."""
    memory = np.empty(sum(rows) * row_bytes, np.uint8)
    return memory, _split(memory, rows, row_bytes)


def _split(memory: Memory, rows: list[int], row_bytes: int) -> list[Memory]:
    return np.split(memory, np.cumsum(rows)[:-1] * row_bytes)


class _SharedFailure:
    """A block that fails on all ranks if it fails on one. At its end the ranks agree."""

    def __init__(self, exchange: Synchronous, rows: list[int], row_bytes: int) -> None:
        self._exchange, self._rows, self._row_bytes = exchange, rows, row_bytes

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._exchange.size > 1:
            self._exchange.agree(error, self._exchange.facts(self._rows, None if error else self._row_bytes))
