"""Exchanges on the timeline: one span for each call of a layer on this rank, with the fate of its tokens."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.moe.exchanges.exchange import Call, Memory, Outcome, Report

if TYPE_CHECKING:
    from horocache import _core

__all__ = ["traced"]

_FATES = (Outcome.NONE, Outcome.DELIVERED)


class _Traceable(Protocol):
    """The facts of an exchange that the timeline shows."""

    name: str
    process_set: ProcessSet

    @property
    def round(self) -> int:
        """The number of the last call, from 1 on."""


_Exchange = TypeVar("_Exchange", bound=_Traceable)


def traced(run: Callable[[_Exchange, Call], Report]) -> Callable[[_Exchange, Call], Report]:
    """Return a method ``run`` of an exchange that writes each call to the timeline of this rank, if there is one.

    The span has the row of its layer and these arguments; ranks are those of the job: ``round``, the number of the
    call; ``rows_sent`` and ``rows_served`` by rank; ``dropped``, rows by cause and then by the rank of their experts;
    ``waited_us`` by rank; or ``error``.
    """

    @functools.wraps(run)
    def run_and_trace(exchange: _Exchange, call: Call) -> Report:
        timeline = _timeline()
        if timeline is None:
            return run(exchange, call)
        counted = _Counted(call)
        began_ns = time.monotonic_ns()
        ranks = exchange.process_set.ranks
        fate: dict[str, Any] = {}
        try:
            report = run(exchange, counted)
            fate = _fate(report, call.rows, ranks)
        except BaseException as error:
            fate = {"error": f"{type(error).__name__}: {error}"}
            raise
        finally:
            args = {
                "process_set": exchange.process_set.process_set_id,
                "round": exchange.round,
                "rows_sent": _by_rank(call.rows, ranks),
                "rows_served": _by_rank(counted.served, ranks),
                **fate,
            }
            name = "EXCHANGE_LOSSLESS" if call.lossless else "EXCHANGE"
            timeline.trace_exchange(_row(exchange), name, json.dumps(args), began_ns, time.monotonic_ns())
        return report

    return run_and_trace


def _timeline() -> _core.Runtime | None:
    """Return the runtime that writes this rank's timeline; None if it writes none.

    The runtime of the C interface has no windows, and shows the operations of the other exchanges alone.
    """
    session = context.running()
    runtime: Any = None if session is None else session.runtime
    return runtime if getattr(runtime, "writes_timeline", False) else None


def _row(exchange: _Traceable) -> str:
    number = exchange.process_set.process_set_id
    return f"experts of {exchange.name}" if not number else f"set {number}: experts of {exchange.name}"


def _by_rank(rows: Sequence[int], ranks: Sequence[int]) -> dict[int, int]:
    return {rank: int(number) for rank, number in zip(ranks, rows, strict=True) if number}


def _fate(report: Report, rows: Sequence[int], ranks: Sequence[int]) -> dict[str, Any]:
    dropped: dict[str, dict[int, int]] = {}
    for rank, number, outcome in zip(ranks, rows, report.outcomes, strict=True):
        if outcome not in _FATES:
            dropped.setdefault(outcome.name.lower(), {})[rank] = int(number)
    waited = {rank: round(seconds * 1e6) for rank, seconds in zip(ranks, report.waited, strict=True) if seconds}
    return {"dropped": dropped, "waited_us": waited}


class _Counted:
    """A call that counts the rows that this rank serves."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.rows = call.rows
        self.row_bytes, self.result_row_bytes = call.row_bytes, call.result_row_bytes
        self.lossless = call.lossless
        self.served = [0] * len(call.rows)
        self.pack, self.take = call.pack, call.take

    def serve(self, peer: int, rows: int, batch: Memory, result: Memory) -> None:
        """Serve the batch and count its rows."""
        self._call.serve(peer, rows, batch, result)
        self.served[peer] += rows
