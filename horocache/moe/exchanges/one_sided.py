"""The one-sided exchange of Aristos: batches and results are written into windows, without a barrier."""

from __future__ import annotations

import math
from collections.abc import Sequence

from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import InputFailedError, InvalidArgumentError, PeerLostError, ShutDownError, StallError
from horocache.moe.exchanges.adaptive_tau import Countdown, Stay
from horocache.moe.exchanges.early_exit import EarlyExit
from horocache.moe.exchanges.exchange import Call, Outcome, Report, as_memory
from horocache.moe.exchanges.trace import traced
from horocache.moe.window import Window, WindowSpec, agree, register_window


class OneSided:
    """Exchanges over a window (Aristos, section 3, with the changes of ``docs/explanation/one_sided_moe.md``).

    The first exchange opens the window: the ranks agree on the size of its cells. Later exchanges send no control
    messages. A batch that is larger than its cell is written into memory of its own.

    Role: owned by a layer; used by one thread at a time.

    Args:
        name: of the layer; equal on all ranks.
        process_set: the ranks of the layer.
        hosts: by rank of the set: whether the rank has experts.
        row_bytes: most bytes of a row of a batch in any call, and of a row of a result.
        early_exit: when forward calls leave early.
        max_tokens: the tokens of one rank for which cells have room. None: the most of a batch in the first call, or
            in a job on several hosts of all batches of a rank, and a quarter more.

    Raises:
        InvalidArgumentError: ``epsilon`` is greater than the number of other ranks.
    """

    def __init__(
        self,
        name: str,
        process_set: ProcessSet,
        hosts: tuple[bool, ...],
        row_bytes: tuple[int, int],
        early_exit: EarlyExit,
        max_tokens: int | None = None,
    ) -> None:
        self.name = name
        self.process_set = process_set
        self.early_exit = early_exit
        self._hosts = hosts
        self._row_bytes = row_bytes
        self._max_tokens = max_tokens
        self._window: Window | None = None
        self._closed = False
        early_exit.check_ranks(len(hosts), name)
        self._countdown = Countdown(early_exit.rule)
        self._stall = _stall_limit()

    @traced
    def run(self, call: Call) -> Report:
        """Run one exchange; see :class:`horocache.moe.exchanges.Exchange`.

        Raises:
            PeerLostError: without early exit, a rank with tokens of this rank died. ShutDownError: it has left the job.
            StallError: without early exit, a result has not come within the limit.
        """
        core = self.open(call.rows).core
        self._enter(call.rows, (call.row_bytes, call.result_row_bytes), call.lossless)
        stay = Stay(call.rows, self.process_set.rank(), self._epsilon) if self._adapts(call.lossless) else None
        try:
            while True:
                event, peer, rows, batch, result = core.next()
                if event == "leave":
                    break
                if event == "take":
                    if stay is not None:
                        stay.take(peer)
                    call.take(peer, as_memory(result))
                elif event == "serve":
                    call.serve(peer, rows, as_memory(batch), as_memory(result))
                elif rows:
                    call.pack(peer, as_memory(batch))
        except InputFailedError as error:  # of another rank, or of a collective that an expert calls
            core.fail(self._reason(error))  # does nothing if the exchange has ended already
            raise InputFailedError(f"{error}; rank {context.rank()} cannot go on with this call") from None
        except BaseException as error:
            core.fail(self._reason(error))
            raise
        if stay is not None:
            self._countdown.add(stay.end())
        report = Report([Outcome(number) for number in core.outcomes()], core.served(), core.waited())
        if call.lossless or not self.early_exit.drops:
            self._check_complete(call, report)
        return report

    def fail(self, why: BaseException) -> None:
        """Fail one exchange on all ranks."""
        core = self.open().core
        self._enter([0] * len(self._hosts), (0, 0), lossless=True)
        core.fail(self._reason(why))

    def close(self) -> None:
        """End the use of the window."""
        self._closed = True
        if self._window is not None:
            self._window.close()

    @property
    def window(self) -> Window:
        """The layer's window, which the first exchange opens."""
        assert self._window is not None
        return self._window

    def open(self, rows: Sequence[int] = (0,)) -> Window:
        """Open the window, if it is not open yet; all ranks call it at the same time.

        Args:
            rows: of this rank's batches in the first call.

        Raises:
            InvalidArgumentError: the exchange was closed. The errors of :func:`horocache.moe.window.register_window`.
        """
        if self._closed:
            raise InvalidArgumentError(f"the exchange of layer {self.name!r} was closed; make another one")
        if self._window is None:
            room = self._max_tokens
            if room is None:
                between_hosts = context.current().runtime.cross_size > 1
                most = sum(rows) if between_hosts else max(rows)
                equal = {"row_bytes": self._row_bytes, "hosts": self._hosts}
                room = max(own["rows"] for own in agree(self.name, equal, {"rows": most}, self.process_set))
                room += room // 4
            batch, result = (room * of_row for of_row in self._row_bytes)
            self._window = register_window(self.name, WindowSpec(self._hosts, batch, result), self.process_set)
        return self._window

    def _enter(self, rows: Sequence[int], row_bytes: tuple[int, int], lossless: bool) -> None:
        tau = math.inf if lossless else self.tau
        limit = None if lossless else self.early_exit.limit
        # The first calls of an adaptive tau lose nothing.
        waits_for_room = lossless or not self.early_exit.drops or (self._countdown.adapts and tau == math.inf)
        self.window.core.enter(
            list(rows),
            self.window.tags[lossless],
            row_bytes,
            len(self._hosts) - 1 if lossless else self._epsilon,
            tau,
            self._stall if limit is None else limit,
            waits_for_room,
        )

    @property
    def round(self) -> int:
        """The number of the last call of the window, which other layers may share; 0 before the first."""
        return 0 if self._window is None else self._window.core.round

    @property
    def tau(self) -> float:
        """The countdown of this rank's next call that may leave early, in seconds."""
        return self._countdown.tau

    @property
    def _epsilon(self) -> int:
        epsilon = self.early_exit.epsilon
        return len(self._hosts) - 1 if epsilon is None else epsilon

    def _adapts(self, lossless: bool) -> bool:
        return self._countdown.adapts and not lossless

    def _reason(self, error: BaseException) -> str:
        return f"rank {context.rank()} failed in layer {self.name!r}: {type(error).__name__}: {error}"

    def _check_complete(self, call: Call, report: Report) -> None:
        """Raise unless every batch was delivered."""
        bad = (Outcome.NONE, Outcome.DELIVERED)
        lost = [peer for peer, outcome in enumerate(report.outcomes) if outcome not in bad]
        if not lost:
            return
        peer = min(lost, key=self.window.core.has_closed)  # ranks leave because another one has died
        rank = self.process_set.ranks[peer]
        tokens = f"{call.rows[peer]} tokens of rank {context.rank()} in layer {self.name!r}"
        outcome = report.outcomes[peer]
        if outcome is Outcome.LOST_RANK and not self.window.core.has_closed(peer):
            raise PeerLostError(
                f"rank {rank} was lost before it answered {tokens}; see that rank's output for the cause"
            )
        if outcome is Outcome.LOST_RANK:
            raise ShutDownError(f"rank {rank} has left the job, or closed the layer, before it answered {tokens}")
        raise StallError(
            f"rank {rank} has not answered {tokens} within {report.waited[peer]:.1f} s of waiting"
            f"{self.window.core.calls_elsewhere()}; all ranks must call the layer, in the same order "
            "(HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS is the limit)"
        )


def _stall_limit() -> float:
    """Return the limit of calls without a limit of their own, in seconds."""
    knobs = context.current().runtime.knobs()
    if knobs["stall_check_disable"][0] in ("1", 1):
        return math.inf
    return float(knobs["stall_shutdown_time_seconds"][0]) or math.inf
