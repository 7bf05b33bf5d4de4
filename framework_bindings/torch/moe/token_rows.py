"""Dispatch and combine on tensors, with gradients: each is the other's transpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import torch
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import InvalidArgumentError
from horocache.moe.channel import Channel, channel_of
from horocache.moe.exchanges import EarlyExit, Maker
from horocache.moe.handle import Handle
from horocache.moe.rows import TYPES, Block
from horocache.moe.transfer import Experts, combine_blocks, dispatch_blocks

from ..compile.dynamo import outside

__all__ = ["combine", "dispatch"]

Pair = tuple[torch.Tensor, torch.Tensor | None]


@dataclass
class _Call:
    """One call; forward passes and backward passes are calls of their own.

    Attributes:
        channel: of the call.
        handle: whose routing is used; a dispatch with experts sets it.
        experts: the routing of a dispatch without a handle.
    """

    channel: Channel
    handle: Handle | None
    experts: _Slots


@dataclass(frozen=True)
class _Slots:
    experts: torch.Tensor | None = None
    expert_ranks: Sequence[int] | None = None
    num_experts: int | None = None


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: _Call, anchor: torch.Tensor, x: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        came, slots = _send(call, x, weights)
        ctx.call = call
        return came if slots is None else (came, slots)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, None, *_combined(_Call(ctx.call.channel, ctx.call.handle, _Slots()), *_pair(grads))


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: _Call, anchor: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        out, slots = _send_back(call, y, weights)
        ctx.call = call
        return out if slots is None else (out, slots)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, None, *_dispatched(_Call(ctx.call.channel, ctx.call.handle, _Slots()), *_pair(grads))


@outside
def dispatch(
    x: torch.Tensor,
    experts: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    *,
    expert_ranks: Sequence[int] | None = None,
    num_experts: int | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    handle: Handle | None = None,
    exchange: str | Maker | None = None,
    early_exit: EarlyExit | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Handle]:
    """Send each of this rank's tokens once to each rank that hosts any of its experts.

    As :func:`horocache.moe.dispatch`, on tensors of float16, bfloat16, float32 or float64 on any device. The result is
    differentiable any number of times. Its gradient is a :func:`combine`, so all ranks must run the backward pass, also
    those without experts: there, too, the rows of :func:`combine` must depend on the received tokens (``came * 0``).
    The result requires a gradient on every rank where gradients are enabled.

    Args:
        x: tokens, shape ``(T, hidden)``.
        experts: integers, shape ``(T, k)``: the expert of each slot; -1 for a slot without one. Not with a handle.
        weights: shape ``(T, k)``: travels with the slots. All ranks give weights, or none does.
        expert_ranks: for each expert the rank within the process set that hosts it; any map.
        num_experts: instead of ``expert_ranks``: consecutive experts are spread evenly.
        name: identifies the calls across ranks; unique for each layer. None: that of the handle.
        process_set: the ranks that take part. None: those of the handle, or all.
        handle: of an earlier dispatch, whose routing is used again.
        exchange: how rows travel, as for :class:`MoELayer`; the first call of a name decides.
        early_exit: only one that loses nothing.

    Returns:
        The received tokens, shape ``(R, hidden)``, by source rank and then by token; int64 ``(R, k)``, their experts,
        -1 in slots of other ranks; their weights ``(R, k)``, 0 in these slots, or None; and the handle.

    Raises:
        InvalidArgumentError, InputFailedError, MismatchError, UnsupportedError: as for :func:`horocache.moe.dispatch`.
    """
    channel = channel_of(name, process_set, handle, exchange, early_exit)
    call = _Call(channel, handle, _Slots(experts, expert_ranks, num_experts))
    came, slots = _dispatched(call, x, weights)
    assert call.handle is not None
    received_experts = torch.tensor(call.handle.received_experts, device=x.device)
    return came, received_experts, slots, call.handle


@outside
def combine(
    y: torch.Tensor,
    handle: Handle,
    weights: torch.Tensor | None = None,
    *,
    name: str | None = None,
    exchange: str | Maker | None = None,
) -> Any:
    """Send each received row back to the rank of its token, and add up the rows of each token.

    As :func:`horocache.moe.combine`, on tensors. Its gradient is a :func:`dispatch` with the handle.

    Args:
        y: shape ``(R, hidden)``: a row for each row that the dispatch brought; ``hidden`` and element type may be
            others than those of the tokens.
        handle: of the dispatch.
        weights: shape ``(R, k)``: values of the received slots, which go back to their slots.
        name: identifies the calls across ranks. None: that of the handle.
        exchange: as for :func:`dispatch`.

    Returns:
        Shape ``(T, hidden)``: for each token the sum of its rows, added in ascending order of the hosts, in float32 or
        float64, then rounded to the type of ``y``. With weights also ``(T, k)``, with 0 in slots without an expert.

    Raises:
        InvalidArgumentError, InputFailedError, MismatchError, UnsupportedError: as for :func:`horocache.moe.dispatch`.
    """
    out, slots = _combined(_Call(channel_of(name, None, handle, exchange, None), handle, _Slots()), y, weights)
    return out if slots is None else (out, slots)


def _dispatched(call: _Call, x: torch.Tensor, weights: torch.Tensor | None) -> Pair:
    """Dispatch, with a gradient where gradients are enabled."""
    if not torch.is_grad_enabled():
        return _send(call, x, weights)
    anchor = torch.zeros((), requires_grad=True)
    return _pair(_Dispatch.apply(call, anchor, x, weights))  # type: ignore[no-untyped-call]


def _combined(call: _Call, y: torch.Tensor, weights: torch.Tensor | None) -> Pair:
    """Combine, with a gradient where gradients are enabled."""
    if not torch.is_grad_enabled():
        return _send_back(call, y, weights)
    anchor = torch.zeros((), requires_grad=True)
    return _pair(_Combine.apply(call, anchor, y, weights))  # type: ignore[no-untyped-call]


def _pair(found: Any) -> Pair:
    if isinstance(found, torch.Tensor):
        return found, None
    return found[0], found[1] if len(found) > 1 else None


def _send(call: _Call, x: torch.Tensor, weights: torch.Tensor | None) -> Pair:
    def read() -> tuple[Block, Experts, Block | None]:
        asked = call.experts
        slots = None if asked.experts is None else torch.as_tensor(asked.experts).cpu().numpy()
        return _block(x, "x"), Experts(slots, asked.expert_ranks, asked.num_experts), _optional_block(weights)

    received = dispatch_blocks(call.channel, call.handle, read)
    call.handle = received.handle
    slots = None if received.weights is None or weights is None else _tensor(received.weights, weights)
    return _tensor(received.x, x), slots


def _send_back(call: _Call, y: torch.Tensor, weights: torch.Tensor | None) -> Pair:
    handle = call.handle
    assert handle is not None
    returned = combine_blocks(call.channel, handle, lambda: (_block(y, "y"), _optional_block(weights)))
    wide = torch.promote_types(y.dtype, torch.float32)
    total = torch.zeros((handle.tokens, y.shape[1]), dtype=wide, device=y.device)
    slots = None if weights is None else torch.zeros((handle.tokens, handle.k), dtype=weights.dtype, device=y.device)
    for numbers, rows, of_slots in returned:
        tokens = torch.from_numpy(numbers).to(y.device)
        total.index_add_(0, tokens, _tensor(rows, y).to(wide))
        if slots is not None and of_slots is not None:
            slots.index_add_(0, tokens, _tensor(of_slots, slots))  # a slot belongs to one rank; the others add 0
    return total.to(y.dtype), slots


def _block(tensor: Any, what: str) -> Block:
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2 or _name_of(tensor) not in TYPES:
        found = (
            f"{tensor.dtype} of {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        )
        raise InvalidArgumentError(
            f"rank {context.rank()}: {what} is a tensor with two dimensions of {[*TYPES]}, not {found}"
        )
    rows = tensor.detach().cpu().contiguous()
    # Flat, because empty tensors may have any strides.
    memory = rows.reshape(-1).view(torch.uint8).numpy().reshape(len(rows), rows.shape[1] * rows.dtype.itemsize)
    return Block(memory, _name_of(tensor))


def _optional_block(weights: torch.Tensor | None) -> Block | None:
    return None if weights is None else _block(weights, "weights")


def _name_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensor(memory: npt.NDArray[np.uint8], like: torch.Tensor) -> torch.Tensor:
    width = memory.shape[1] // like.dtype.itemsize
    flat = torch.from_numpy(np.ascontiguousarray(memory).reshape(-1)).view(like.dtype)
    return flat.view(len(memory), width).to(like.device)
