"""Dispatch and combine on NumPy arrays: the two ways of tokens, for programs that run experts of their own.

The names and the split are those that users of DeepEP know. ``docs/explanation/mixture_of_experts.md`` has an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import InvalidArgumentError
from horocache.moe.channel import channel_of
from horocache.moe.exchanges.early_exit import EarlyExit
from horocache.moe.exchanges.registry import Maker
from horocache.moe.handle import Handle, Integers
from horocache.moe.rows import TYPES, Block
from horocache.moe.transfer import Experts, combine_blocks, dispatch_blocks

__all__ = ["combine", "dispatch"]

Array = npt.NDArray[Any]


def dispatch(
    x: Array,
    experts: Array | None = None,
    weights: Array | None = None,
    *,
    expert_ranks: Sequence[int] | None = None,
    num_experts: int | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    handle: Handle | None = None,
    exchange: str | Maker | None = None,
    early_exit: EarlyExit | None = None,
) -> tuple[Array, Integers, Array | None, Handle]:
    """Send each of this rank's tokens once to each rank that hosts any of its experts.

    All ranks of the process set call it in the same order, also ranks without tokens. No token is lost.

    Args:
        x: tokens, shape ``(T, hidden)``, of a floating-point type that is equal on all ranks. ``T`` may differ and be
            0.
        experts: integers, shape ``(T, k)``: the expert of each slot; -1 for a slot without one. Not with a handle.
        weights: shape ``(T, k)``, floating-point: travels with the slots. All ranks give weights, or none does.
        expert_ranks: for each expert the rank within the process set that hosts it; any map.
        num_experts: instead of ``expert_ranks``: consecutive experts are spread evenly.
        name: identifies the calls across ranks; unique for each layer. None: that of the handle.
        process_set: the ranks that take part. None: those of the handle, or all.
        handle: of an earlier dispatch, whose routing is used again; the experts do not travel then.
        exchange: how rows travel, as for :class:`horocache.torch.moe.MoELayer`; the first call of a name decides.
        early_exit: only one that loses nothing.

    Returns:
        The received tokens, shape ``(R, hidden)``, by source rank and then by token; int64 ``(R, k)``, their experts,
        -1 in slots of other ranks; their weights ``(R, k)``, 0 in these slots, or None; and the handle.

    Raises:
        InvalidArgumentError: an argument of this rank is wrong. Nothing has been sent, and the other ranks raise
            InputFailedError, unless it is the name, process set, handle or exchange.
        InputFailedError: another rank failed in this call; names it and its error.
        MismatchError: ranks differ in element types, lengths, ``expert_ranks`` or handles, or one of them combines;
            names two ranks and both values.
        UnsupportedError: an element type is not supported, or ``early_exit`` may lose tokens.
    """
    channel = channel_of(name, process_set, handle, exchange, early_exit)

    def read() -> tuple[Block, Experts, Block | None]:
        slots = None if experts is None else np.asarray(experts)
        return _block(x, "x"), Experts(slots, expert_ranks, num_experts), _optional_block(weights)

    received = dispatch_blocks(channel, handle, read)
    came = received.weights
    return (
        _array(received.x, np.asarray(x).dtype),
        received.handle.received_experts,
        None if came is None else _array(came, np.asarray(weights).dtype),
        received.handle,
    )


def combine(
    y: Array,
    handle: Handle,
    weights: Array | None = None,
    *,
    name: str | None = None,
    exchange: str | Maker | None = None,
) -> Any:
    """Send each received row back to the rank of its token, and add up the rows of each token.

    All ranks of the handle's process set call it in the same order.

    Args:
        y: shape ``(R, hidden)``: a row for each row that the dispatch brought; ``hidden`` and the floating-point type
            may be others than those of the tokens.
        handle: of the dispatch.
        weights: shape ``(R, k)``: values of the received slots, which go back to their slots.
        name: identifies the calls across ranks. None: that of the handle.
        exchange: as for :func:`dispatch`.

    Returns:
        Shape ``(T, hidden)``: for each token the sum of its rows, added in ascending order of the hosts, in float32 or
        float64, then rounded to the type of ``y``; 0 for tokens without a row. With weights also ``(T, k)``, with 0 in
        slots without an expert.

    Raises:
        InvalidArgumentError, InputFailedError, MismatchError, UnsupportedError: as for :func:`dispatch`.
    """
    channel = channel_of(name, None, handle, exchange, None)
    returned = combine_blocks(channel, handle, lambda: (_block(y, "y"), _optional_block(weights)))
    dtype = np.asarray(y).dtype
    total = np.zeros((handle.tokens, np.asarray(y).shape[1]), np.promote_types(dtype, np.float32))
    slots = None if weights is None else np.zeros((handle.tokens, handle.k), np.asarray(weights).dtype)
    for tokens, rows, of_slots in returned:
        total[tokens] += _array(rows, dtype)
        if slots is not None and of_slots is not None:
            slots[tokens] += _array(of_slots, slots.dtype)  # a slot belongs to one rank; the others add 0
    out = total.astype(dtype, copy=False)
    return out if slots is None else (out, slots)


def _block(array: Any, what: str) -> Block:
    rows = np.asarray(array)
    if rows.ndim != 2 or rows.dtype.name not in TYPES:
        raise InvalidArgumentError(
            f"rank {context.rank()}: {what} has two dimensions and is one of "
            f"{[each for each in TYPES if each != 'bfloat16']}, not {rows.dtype} of shape {rows.shape}"
        )
    width = rows.shape[1] * rows.dtype.itemsize
    return Block(np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), width), rows.dtype.name)


def _optional_block(array: Any) -> Block | None:
    return None if array is None else _block(array, "weights")


def _array(memory: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(memory).view(dtype)
