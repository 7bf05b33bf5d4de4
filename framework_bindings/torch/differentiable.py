"""The gradients of the collectives.

The convention is Horovod's: each rank differentiates its own loss, and what is optimized is the mean of the losses. So
the gradient of a sum over ranks is a sum, and that of a copy to all ranks is the mean of what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from horocache.errors import UnsupportedError
from horocache.handles import synchronize
from horocache.layers import AnyCompressor
from horocache.ops import Average, Name, Sum
from horocache.process_set import ProcessSet

from .adapter import collectives
from .compression import Compression


def backward_name(name: Name) -> Name:
    """The name of the operation that computes the gradient of ``name``."""
    if name is None:
        return None
    return name + b".backward" if isinstance(name, bytes) else f"{name}.backward"


def member_name(name: Name, index: int) -> Name:
    """The name of one of a group's operations, where they are run one by one; the first keeps the group's."""
    if name is None or index == 0:
        return name
    return name + b".%d" % index if isinstance(name, bytes) else f"{name}.{index}"


def without_algorithm(backend: str | None) -> str | None:
    """The backend alone: where the gradient is another operation, it has other algorithms."""
    return None if backend is None else backend.partition("/")[0]


def _refuse_unless_linear(op: int, what: str) -> None:
    """Only in the backward pass: who wants the result alone, of a loss for example, need not detach it."""
    if op not in (Average, Sum):
        raise UnsupportedError(f"{what} has a gradient for Average and Sum only, not for op={op}; detach the tensor.")


def _apply(function: Any, *arguments: Any) -> Any:
    """Gradients go through the differentiable operations, too, so that they have gradients in turn."""
    return function.apply(*arguments)


def _average(
    grads: Sequence[torch.Tensor], name: Name, process_set: ProcessSet, backend: str | None, group: bool
) -> Any:
    call = (backward_name(name), Compression.none, Average, (1.0, 1.0), process_set, backend, group)
    return _apply(Allreduce, *call, *grads)


class Allreduce(torch.autograd.Function):
    """Gradient: allreduce with the same operation and scales."""

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
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduce one tensor, or a group."""
        ctx.call = (name, compression, op, scales, process_set, backend, group)
        if group:
            call = (list(tensors), None, name, compression, op, *scales, process_set)
            return tuple(collectives.grouped_allreduce(*call, backend=backend))
        return (collectives.allreduce(tensors[0], None, name, compression, op, *scales, process_set, backend=backend),)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Reduce the gradients the same way."""
        name, compression, op, *call = ctx.call
        _refuse_unless_linear(op, "allreduce")
        reduced = _apply(Allreduce, backward_name(name), compression, op, *call, *grads)
        return (*[None] * len(ctx.call), *reduced)


class Allgather(torch.autograd.Function):
    """Gradient: the mean over the ranks, and of it this rank's rows."""

    @staticmethod
    def forward(
        ctx: Any, name: Name, process_set: ProcessSet, backend: str | None, group: bool, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Gather one tensor, or a group."""
        gathered = collectives.allgather_with_rows(list(tensors), name, process_set, group, backend=backend)
        ctx.call = (name, process_set, without_algorithm(backend), group)
        ctx.rows = [rows for _, rows in gathered]
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(output for output, _ in gathered)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Average, and slice."""
        name, process_set, backend, group = ctx.call
        means = _average(grads, name, process_set, backend, group)
        own = process_set.rank()
        slices = []
        for mean, rows, shape in zip(means, ctx.rows, ctx.shapes, strict=True):
            start = sum(rows[:own])
            slices.append(mean[start : start + rows[own]].reshape(shape))
        return (None, None, None, None, *slices)


class Broadcast(torch.autograd.Function):
    """Gradient: the mean over the ranks on the root, zero elsewhere."""

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
        ctx.call = (root_rank, name, process_set, without_algorithm(backend), group)
        call = (root_rank, name, process_set)
        if group:
            return tuple(collectives.grouped_broadcast(list(tensors), *call, backend=backend))
        return (collectives.broadcast(tensors[0], *call, backend=backend),)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Average to the root."""
        root_rank, name, process_set, backend, group = ctx.call
        means = _average(grads, name, process_set, backend, group)
        if process_set.ranks[process_set.rank()] != root_rank:
            # Zero, and still a part of the graph: all ranks have to run the gradient of this allreduce.
            means = [mean.masked_fill(torch.ones((), dtype=torch.bool), 0) for mean in means]
        return (*[None] * len(ctx.call), *means)


class Alltoall(torch.autograd.Function):
    """Gradient: alltoall the way back, with the splits that were received."""

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
        """Exchange rows; all outputs, then the rows received of each."""
        call = (splits, name, process_set)
        if group:
            pairs = synchronize(collectives.grouped_alltoall_async(list(tensors), *call, backend=backend))
        else:
            pairs = [synchronize(collectives.alltoall_async(tensors[0], *call, backend=backend))]
        outputs, received = zip(*pairs, strict=True)
        ctx.call = (name, process_set, backend)
        ctx.back = (received, [tensor.shape for tensor in tensors])
        ctx.mark_non_differentiable(*received)
        return (*outputs, *received)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Exchange the gradient's rows, of one tensor after the other; rows that were sent to nobody have none."""
        name, process_set, backend = ctx.call
        results = []
        for index, (received, shape) in enumerate(zip(*ctx.back, strict=True)):
            own_name = member_name(backward_name(name), index)
            back, _ = _apply(Alltoall, received, own_name, process_set, backend, False, grads[index])
            if back.shape != shape:
                back = torch.cat([back, back.new_zeros((shape[0] - back.shape[0], *shape[1:]))])
            results.append(back)
        return (None, None, None, None, None, *results)


class Reducescatter(torch.autograd.Function):
    """Gradient: allgather, times the number of ranks for Sum, times the scales."""

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
        """Reduce and share out one tensor, or a group."""
        call = (name, compression, op, process_set, *scales)
        if group:
            outputs = tuple(collectives.grouped_reducescatter(list(tensors), *call, backend=backend))
        else:
            outputs = (collectives.reducescatter(tensors[0], *call, backend=backend),)
        # Afterwards: now the scales are numbers, and the process set is one.
        ctx.op = op
        ctx.call = (name, process_set, without_algorithm(backend), group)
        ctx.factor = scales[0] * scales[1] * (process_set.size() if op == Sum else 1)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Gather the scaled gradients."""
        _refuse_unless_linear(ctx.op, "reducescatter")
        name, process_set, backend, group = ctx.call
        scaled = [grad if ctx.factor == 1.0 else grad * ctx.factor for grad in grads]
        gathered = _apply(Allgather, backward_name(name), process_set, backend, group, *scaled)
        return (None, None, None, None, None, None, None, *gathered)
