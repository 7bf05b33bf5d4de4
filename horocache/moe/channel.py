"""Channels: the exchanges by which the calls of one name are dispatched and combined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.core.session import Session
from horocache.errors import CollectiveError, InputFailedError, InvalidArgumentError, UnsupportedError
from horocache.moe.exchanges.early_exit import EarlyExit
from horocache.moe.exchanges.exchange import Exchange, Outcome
from horocache.moe.exchanges.registry import Maker, Options, chosen_exchange, make_exchange
from horocache.moe.handle import Handle
from horocache.moe.rows import RowMove
from horocache.moe.window import agree

__all__ = ["Channel", "Prepared", "channel_of"]


class Prepared(Protocol):
    """The arguments of a call, checked."""

    @property
    def facts(self) -> dict[str, Any]:
        """The arguments that must be equal on all ranks in the first call."""

    @property
    def most_row_bytes(self) -> int:
        """Bytes of a row for which windows have room."""


P = TypeVar("P", bound=Prepared)


@dataclass
class Channel:
    """The exchanges of one name. Role: owned by the session; used by one thread at a time."""

    session: Session
    name: str
    process_set: ProcessSet
    kind: str | Maker
    _exchanges: dict[str, Exchange] = field(default_factory=dict)

    def prepare(self, operation: str, make: Callable[[], P]) -> P:
        """Check the arguments of a call; a mistake of one rank fails the call on all ranks.

        Args:
            operation: ``"dispatch"`` or ``"combine"``. The first call of each connects the ranks.
            make: checks the arguments.

        Raises:
            InputFailedError: another rank made a mistake. MismatchError: arguments of the first call differ between
                ranks. The errors of ``make``.
        """
        exchange = self._exchanges.get(operation)
        try:
            prepared = make()
        except Exception as error:
            if exchange is not None:
                exchange.fail(error)
            else:
                self._tell(operation, error)
            raise
        if exchange is None:
            self._tell(operation, None)
            kind = self.kind if isinstance(self.kind, str) else getattr(self.kind, "__name__", "of the program")
            agree(f"{self.name}.{operation}", {**prepared.facts, "exchange": kind}, {}, self.process_set)
            self._exchanges[operation] = self._made(operation, prepared.most_row_bytes)
        return prepared

    def run(self, operation: str, move: RowMove) -> None:
        """Move rows.

        Raises:
            CollectiveError: an exchange of the program lost rows. The errors of the exchange.
        """
        report = self._exchanges[operation].run(move)
        for peer, outcome in enumerate(report.outcomes):
            if outcome not in (Outcome.NONE, Outcome.DELIVERED):
                raise CollectiveError(
                    f"rank {context.rank()}, {operation} {self.name!r}: {move.rows[peer]} rows for rank "
                    f"{self.process_set.ranks[peer]} were lost ({outcome.name.lower()}); dispatch and combine lose "
                    "nothing, so give them another exchange, or use MoELayer"
                )

    def describe(self, operation: str, peer: int) -> str:
        """Return the start of an error of this rank about another one."""
        ranks = self.process_set.ranks
        return f"rank {context.rank()}, {operation} {self.name!r}: rank {ranks[peer]}"

    def _tell(self, operation: str, failure: Exception | None) -> None:
        """Tell the other ranks in a first call whether this rank failed."""
        own = None if failure is None else f"{type(failure).__name__}: {failure}"
        gathered = agree(f"{self.name}.{operation}.first", {}, {"failure": own}, self.process_set)
        for rank, theirs in zip(self.process_set.ranks, gathered, strict=True):
            if theirs["failure"] is not None and failure is None:
                raise InputFailedError(
                    f"rank {rank} failed in {operation} {self.name!r}, so rank {context.rank()} cannot go on with this "
                    f"call: {theirs['failure']}"
                )

    def _made(self, operation: str, most_row_bytes: int) -> Exchange:
        # Both operations have equal row bytes and hosts, so that their windows are one, whose tags tell them apart.
        everywhere = (True,) * self.process_set.size()
        name = f"{self.name}.{operation}"
        return make_exchange(self.kind, Options(name, self.process_set, everywhere, most_row_bytes, 0))


def channel_of(
    name: str | None,
    process_set: ProcessSet | None,
    handle: Handle | None,
    exchange: str | Maker | None,
    early_exit: EarlyExit | None,
) -> Channel:
    """Return the channel of a call; make it in the first one.

    Raises:
        InvalidArgumentError: the arguments do not go together, or the handle is not of this session.
        UnsupportedError: ``early_exit`` may lose rows.
    """
    session = context.current()
    if early_exit is not None and early_exit.drops:
        raise UnsupportedError(
            f"dispatch and combine lose no rows, so {early_exit} has no meaning for them; use MoELayer, whose calls "
            "may leave early, or leave it out"
        )
    if handle is not None:
        _check_handle(handle, session, process_set)
        process_set, name = handle.process_set, handle.name if name is None else name
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"dispatch needs a name, equal on all ranks and unique by layer, not {name!r}")
    process_set = global_process_set if process_set is None else process_set
    process_set.rank()  # raises if this rank is not in it
    key = (tuple(process_set.ranks), process_set.process_set_id, name)
    found: Channel | None = session.dispatch_channels.get(key)
    if found is None:
        found = Channel(session, name, process_set, chosen_exchange(exchange, EarlyExit()))
        session.dispatch_channels[key] = found
    elif exchange is not None and chosen_exchange(exchange, EarlyExit()) != found.kind:
        raise InvalidArgumentError(
            f"dispatch {name!r} began with the exchange {found.kind!r}, and now asks for {exchange!r}; give it another "
            "name"
        )
    return found


def _check_handle(handle: Any, session: Session, process_set: ProcessSet | None) -> None:
    if not isinstance(handle, Handle):
        raise InvalidArgumentError(f"a handle is what dispatch() returned, not {type(handle).__name__}")
    if handle.session is not session:
        raise InvalidArgumentError(
            f"rank {context.rank()}: {handle} is of a session that has ended; dispatch with experts again"
        )
    if process_set is not None and process_set.ranks != handle.process_set.ranks:
        raise InvalidArgumentError(
            f"rank {context.rank()}: {handle} is of the ranks {handle.process_set.ranks}, and the call of the ranks "
            f"{process_set.ranks}; a handle belongs to its process set"
        )
