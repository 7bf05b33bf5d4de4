"""Autograd functions of the eager collectives, with the gradient formulas of :mod:`horocache.data_parallel.vjp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from horocache.collectives.api import Name
from horocache.collectives.completion import synchronize
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet
from horocache.data_parallel import vjp
from horocache.data_parallel.vjp import Call, Reduction

from .adapter import collectives
from .compression import Compression
from .vjp_arithmetic import Arithmetic, with_rows


def _apply(function: Any, *arguments: Any) -> Any:
    """Apply a differentiable operation. Backward passes use these operations, too, so gradients are differentiable."""
    return function.apply(*arguments)


class _Operations(Arithmetic):
    """Implements :class:`horocache.data_parallel.vjp.Differentiable` for eager tensors."""

    uncompressed = Compression.none

    def refuse(self, grads: Sequence[torch.Tensor], op: int, what: str) -> Sequence[torch.Tensor]:
        vjp.refuse(op, what)

    def allreduce(self, tensors: Sequence[torch.Tensor], how: Reduction, call: Call) -> Sequence[torch.Tensor]:
        name, *where = call
        reduced: Sequence[torch.Tensor] = _apply(Allreduce, name, *how, *where, 0, *tensors)
        return reduced

    def allgather(self, tensors: Sequence[torch.Tensor], call: Call) -> Sequence[torch.Tensor]:
        gathered: Sequence[torch.Tensor] = _apply(Allgather, *call, *tensors)
        return gathered

    def alltoall_back(self, tensor: torch.Tensor, splits: torch.Tensor, rows: Any, call: Call) -> torch.Tensor:
        back, _ = _apply(Alltoall, splits, *call, tensor)
        return with_rows(back, rows)


_operations = _Operations()


class Allreduce(torch.autograd.Function):
    """An allreduce with a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        name: Name,
        compression: AnyCompressor,
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        backend: str | None,
        group: bool,
        priority: int,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduce one tensor, or a group."""
        ctx.call = Reduction(compression, op, scales), Call(name, process_set, backend, group)
        call = (None, name, compression, op, *scales, process_set)
        more: dict[str, Any] = {"backend": backend, "priority": priority}
        if group:
            return tuple(collectives.grouped_allreduce(list(tensors), *call, **more))
        return (collectives.allreduce(tensors[0], *call, **more),)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Reduce the gradients in the same way."""
        return (*[None] * 8, *vjp.of_allreduce(_operations, grads, *ctx.call))


class Allgather(torch.autograd.Function):
    """An allgather with a gradient."""

    @staticmethod
    def forward(
        ctx: Any, name: Name, process_set: ProcessSet, backend: str | None, group: bool, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Gather one tensor, or a group."""
        gathered = collectives.allgather_with_rows(list(tensors), name, process_set, group, backend=backend)
        ctx.call = Call(name, process_set, backend, group)
        own = process_set.rank()
        ctx.starts = [sum(rows[:own]) for _, rows in gathered]
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(output for output, _ in gathered)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Average the gradients over the ranks and return this rank's rows."""
        return (*[None] * 4, *vjp.of_allgather(_operations, grads, ctx.starts, ctx.shapes, ctx.call))


class Broadcast(torch.autograd.Function):
    """A broadcast with a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        root_rank: int,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        group: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Copy one tensor, or a group, from the root."""
        ctx.root_rank, ctx.call = root_rank, Call(name, process_set, backend, group)
        call = (root_rank, name, process_set)
        if group:
            return tuple(collectives.grouped_broadcast(list(tensors), *call, backend=backend))
        return (collectives.broadcast(tensors[0], *call, backend=backend),)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Return the mean of the ranks' gradients on the root, zeros on the other ranks."""
        process_set: ProcessSet = ctx.call.process_set
        is_root = process_set.ranks[process_set.rank()] == ctx.root_rank
        return (*[None] * 5, *vjp.of_broadcast(_operations, grads, is_root, ctx.call))


class Alltoall(torch.autograd.Function):
    """An alltoall with a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        splits: Any,
        name: Name,
        process_set: ProcessSet,
        backend: str | None,
        group: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Exchange rows; return all outputs, then for each output the number of rows from each rank."""
        call = (splits, name, process_set)
        if group:
            pairs = synchronize(collectives.grouped_alltoall_async(list(tensors), *call, backend=backend))
        else:
            pairs = [synchronize(collectives.alltoall_async(tensors[0], *call, backend=backend))]
        outputs, received = zip(*pairs, strict=True)
        ctx.call = Call(name, process_set, backend, group)
        ctx.back = (received, [tensor.shape for tensor in tensors])
        ctx.mark_non_differentiable(*received)
        return (*outputs, *received)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Send the gradient's rows back; the gradient of rows that were not sent is zero."""
        received, shapes = ctx.back
        outputs = grads[: len(shapes)]
        return (*[None] * 5, *vjp.of_alltoall(_operations, outputs, received, shapes, ctx.call))


class Reducescatter(torch.autograd.Function):
    """A reducescatter with a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        name: Name,
        compression: AnyCompressor,
        op: int,
        process_set: ProcessSet,
        backend: str | None,
        scales: tuple[float, float],
        group: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduce one tensor, or a group; return this rank's rows."""
        call = (name, compression, op, process_set, *scales)
        if group:
            outputs = tuple(collectives.grouped_reducescatter(list(tensors), *call, backend=backend))
        else:
            outputs = (collectives.reducescatter(tensors[0], *call, backend=backend),)
        # After the call: it has checked that the scales are numbers and that the process set is registered.
        ctx.how = (op, scales, process_set.size(), Call(name, process_set, backend, group))
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Scale the gradients and gather them."""
        return (*[None] * 7, *vjp.of_reducescatter(_operations, grads, *ctx.how))
