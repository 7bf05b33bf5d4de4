"""Dispatch and combine on bytes, once for all frameworks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from horocache.core import context
from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.moe.channel import Channel
from horocache.moe.exchanges.exchange import Memory
from horocache.moe.handle import Handle, Integers
from horocache.moe.route import Route, check_expert_ranks, even_expert_ranks
from horocache.moe.rows import TYPES, Block, Header, RowMove, row_bytes_of

__all__ = ["Experts", "Received", "combine_blocks", "dispatch_blocks"]


class Experts(NamedTuple):
    """The routing that a caller asks for: the arguments of a dispatch with the same names, or of one by a handle."""

    slots: npt.NDArray[Any] | None
    expert_ranks: Sequence[int] | None
    num_experts: int | None


class Received(NamedTuple):
    """The rows that came, by source rank, as bytes; and their handle."""

    x: Memory
    weights: Memory | None
    handle: Handle


class Returned(NamedTuple):
    """The rows that one host sent back."""

    tokens: Integers
    x: Memory
    weights: Memory | None


@dataclass(frozen=True)
class _Sent:
    """The checked arguments of a dispatch or combine; see :class:`horocache.moe.channel.Prepared`."""

    x: Block
    weights: Block | None
    k: int
    route: Route
    expert_ranks: tuple[int, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """The arguments that must be equal on all ranks in the first call."""
        return {
            "hidden": self.x.width,
            "element type": self.x.dtype,
            "k": self.k,
            "element type of weights": None if self.weights is None else self.weights.dtype,
            "expert_ranks": self.expert_ranks,
        }

    @property
    def most_row_bytes(self) -> int:
        """Bytes of the longest row with this hidden size and ``k``."""
        return row_bytes_of([4 * self.k, max(TYPES.values()) * self.k, self.x.memory.shape[1]])

    def header(self, operation: str, number: int) -> Header:
        """Return the header of the rows."""
        return Header(operation, number, self.x.dtype, None if self.weights is None else self.weights.dtype)


def dispatch_blocks(
    channel: Channel, handle: Handle | None, read: Callable[[], tuple[Block, Experts, Block | None]]
) -> Received:
    """Send each token once to each rank that hosts any of its experts.

    Args:
        channel: of the call.
        handle: of an earlier dispatch; None routes the tokens anew.
        read: returns tokens, routing and weights; its errors reach all ranks.

    Raises:
        The errors of :func:`horocache.moe.dispatch`.
    """
    number = _next_number(channel) if handle is None else handle.number
    sent = channel.prepare("dispatch", lambda: _checked_dispatch(channel, handle, *read()))
    route = sent.route

    def fields(peer: int) -> list[Memory]:
        tokens = route.tokens[peer]
        experts = [] if handle is not None else [_bytes(route.experts_for(peer).astype(np.int32))]
        mask = route.masks[peer][tokens]
        weights = [] if sent.weights is None else [_masked(sent.weights, tokens, mask)]
        return [*experts, *weights, sent.x.memory[tokens]]

    widths = [] if handle is not None else [4 * sent.k]
    widths += [] if sent.weights is None else [sent.weights.memory.shape[1]]
    header = sent.header("dispatch" if handle is None else "dispatch by a handle", number)
    expected = None if handle is None else handle.rows_received
    widths.append(sent.x.memory.shape[1])
    move = RowMove(route.rows, fields, widths, header, expected, partial(channel.describe, "dispatch"))
    channel.run("dispatch", move)
    came, counts = move.received()
    if handle is None:
        experts = came.pop(0).view(np.int32).astype(np.int64)
        handle = Handle(
            channel.name, channel.process_set, sent.expert_ranks, route, counts, experts, number, channel.session
        )
    return Received(came[-1], None if sent.weights is None else came[0], handle)


def combine_blocks(channel: Channel, handle: Handle, read: Callable[[], tuple[Block, Block | None]]) -> list[Returned]:
    """Send each received row back to the rank of its token.

    Args:
        channel: of the call.
        handle: of the dispatch that brought the rows.
        read: returns one row for each received row, and weights; its errors reach all ranks.

    Returns:
        The rows that came back from each host, by rank.

    Raises:
        The errors of :func:`horocache.moe.combine`.
    """
    sent = channel.prepare("combine", lambda: _checked_combine(channel, handle, *read()))
    mask = handle.received_experts >= 0

    def fields(peer: int) -> list[Memory]:
        rows = handle.rows_from(peer)
        weights = [] if sent.weights is None else [_masked(sent.weights, rows, mask[rows])]
        return [*weights, sent.x.memory[rows]]

    widths = [] if sent.weights is None else [sent.weights.memory.shape[1]]
    widths.append(sent.x.memory.shape[1])
    header = sent.header("combine", handle.number)
    describe = partial(channel.describe, "combine")
    move = RowMove(handle.rows_received, fields, widths, header, handle.rows_sent, describe)
    channel.run("combine", move)
    came, counts = move.received()
    ends = np.cumsum(counts).tolist()
    returned = []
    for host, (end, rows) in enumerate(zip(ends, counts, strict=True)):
        part = slice(end - rows, end)
        weights = None if sent.weights is None else came[0][part]
        returned.append(Returned(handle.route.tokens[host], came[-1][part], weights))
    return returned


def _next_number(channel: Channel) -> int:
    """Return the number of the next handle of the process set."""
    numbers = channel.session.dispatch_handles
    numbers[tuple(channel.process_set.ranks)] += 1
    return numbers[tuple(channel.process_set.ranks)]


def _checked_dispatch(
    channel: Channel, handle: Handle | None, x: Block, experts: Experts, weights: Block | None
) -> _Sent:
    where = f"rank {context.rank()}, dispatch {channel.name!r}"
    _check_rows(x, where, "x")
    if handle is not None:
        if any(each is not None for each in experts):
            raise InvalidArgumentError(
                f"{where}: a handle has the routing; leave out experts, expert_ranks and num_experts, or the handle"
            )
        if len(x.memory) != handle.tokens:
            raise InvalidArgumentError(f"{where}: x has {len(x.memory)} tokens, but {handle} has {handle.tokens}")
        _check_weights(weights, (handle.tokens, handle.k), where)
        return _Sent(x, weights, handle.k, handle.route, handle.expert_ranks)
    slots = experts.slots
    if slots is None:
        raise InvalidArgumentError(f"{where}: give the experts of each token, or the handle of an earlier dispatch")
    if slots.ndim != 2 or slots.shape[0] != len(x.memory) or slots.shape[1] < 1 or slots.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{where}: experts are whole numbers of shape ({len(x.memory)}, k), not {slots.dtype} of {slots.shape}"
        )
    _check_weights(weights, (slots.shape[0], slots.shape[1]), where)
    ranks = channel.process_set.size()
    try:
        hosts = _hosts(experts, ranks)
        route = Route(slots.astype(np.int64), hosts, ranks)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}: {error}") from None
    return _Sent(x, weights, slots.shape[1], route, tuple(hosts))


def _hosts(experts: Experts, ranks: int) -> list[int]:
    """Return the rank of each expert."""
    number = experts.num_experts
    if (experts.expert_ranks is None) == (number is None):
        raise InvalidArgumentError("give either num_experts or expert_ranks, the rank of each expert")
    if experts.expert_ranks is not None:
        return check_expert_ranks(experts.expert_ranks, len(experts.expert_ranks), ranks)
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
        raise InvalidArgumentError(f"num_experts is a number of at least 1, not {number!r}")
    return even_expert_ranks(int(number), ranks)


def _checked_combine(channel: Channel, handle: Handle, y: Block, weights: Block | None) -> _Sent:
    where = f"rank {context.rank()}, combine {channel.name!r}"
    _check_rows(y, where, "y")
    if len(y.memory) != handle.rows:
        raise InvalidArgumentError(
            f"{where}: y has {len(y.memory)} rows, but {handle} received {handle.rows}; give one row for each"
        )
    _check_weights(weights, (handle.rows, handle.k), where)
    return _Sent(y, weights, handle.k, handle.route, handle.expert_ranks)


def _check_rows(block: Block, where: str, what: str) -> None:
    if block.dtype not in TYPES:
        raise UnsupportedError(f"{where}: {what} has the element type {block.dtype}; it may be one of {[*TYPES]}")
    if block.width < 1:
        raise InvalidArgumentError(f"{where}: {what} has rows without elements")


def _check_weights(weights: Block | None, shape: tuple[int, int], where: str) -> None:
    if weights is None:
        return
    if weights.dtype not in TYPES:
        raise UnsupportedError(f"{where}: weights have the type {weights.dtype}; it may be one of {[*TYPES]}")
    if (len(weights.memory), weights.width) != shape:
        had = (len(weights.memory), weights.width)
        raise InvalidArgumentError(f"{where}: weights have the shape {had}, but must have one for each slot: {shape}")


def _masked(weights: Block, rows: Integers | slice, mask: npt.NDArray[np.bool_]) -> Memory:
    """Return some rows of weights, with zeros in the slots that are not in the mask."""
    chosen = weights.memory[rows].reshape(*mask.shape, TYPES[weights.dtype])
    return np.where(mask[..., np.newaxis], chosen, np.uint8(0)).reshape(len(chosen), weights.memory.shape[1])


def _bytes(numbers: npt.NDArray[np.int32]) -> Memory:
    return np.ascontiguousarray(numbers).view(np.uint8)
