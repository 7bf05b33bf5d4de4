"""The collectives on torch tensors, differentiable where they are blocking and return new tensors.

Argument orders are Horovod's. What an operation does, its names and its errors are described at
:class:`horocache.collectives.api.Collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horocache.torch import autograd
from horocache.torch.adapter import collectives
from horocache.torch.compression import Compression

import torch
from horocache.collectives.api import Average, Name, Sum, check_op, resolve_op, synchronize
from horocache.collectives.arguments import check_list
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import UnsupportedError

# These need no autograd: they are asynchronous, or store their result in their input.
allgather_ = collectives.allgather_
allgather_async = collectives.allgather_async
allgather_async_ = collectives.allgather_async_
allgatherv_async = collectives.allgatherv_async
allreduce_ = collectives.allreduce_
allreduce_async = collectives.allreduce_async
allreduce_async_ = collectives.allreduce_async_
allreduce_each_async_ = collectives.allreduce_each_async_
alltoall_ = collectives.alltoall_
alltoall_async = collectives.alltoall_async
alltoall_async_ = collectives.alltoall_async_
alltoallv_async = collectives.alltoallv_async
broadcast_ = collectives.broadcast_
broadcast_async = collectives.broadcast_async
broadcast_async_ = collectives.broadcast_async_
gather_async = collectives.gather_async
gatherv_async = collectives.gatherv_async
grouped_allgather_ = collectives.grouped_allgather_
grouped_allgather_async = collectives.grouped_allgather_async
grouped_allgather_async_ = collectives.grouped_allgather_async_
grouped_allreduce_ = collectives.grouped_allreduce_
grouped_allreduce_async = collectives.grouped_allreduce_async
grouped_allreduce_async_ = collectives.grouped_allreduce_async_
grouped_alltoall_ = collectives.grouped_alltoall_
grouped_alltoall_async = collectives.grouped_alltoall_async
grouped_alltoall_async_ = collectives.grouped_alltoall_async_
grouped_broadcast_ = collectives.grouped_broadcast_
grouped_broadcast_async = collectives.grouped_broadcast_async
grouped_broadcast_async_ = collectives.grouped_broadcast_async_
grouped_reducescatter_ = collectives.grouped_reducescatter_
grouped_reducescatter_async = collectives.grouped_reducescatter_async
grouped_reducescatter_async_ = collectives.grouped_reducescatter_async_
reduce_async = collectives.reduce_async
reducescatter_ = collectives.reducescatter_
reducescatter_async = collectives.reducescatter_async
reducescatter_async_ = collectives.reducescatter_async_
reducescatterv_async = collectives.reducescatterv_async
scatter_async = collectives.scatter_async
scatterv_async = collectives.scatterv_async

# These have no gradient, as not all ranks get a result that they could differentiate, or places overlap.
allgatherv = collectives.allgatherv
alltoallv = collectives.alltoallv
gather = collectives.gather
gatherv = collectives.gatherv
reduce = collectives.reduce
reducescatterv = collectives.reducescatterv
scatter = collectives.scatter
scatterv = collectives.scatterv

# Nor have messages: what one rank does to them another one's graph does not know.
isend = collectives.isend
irecv = collectives.irecv
send = collectives.send
recv = collectives.recv
sendrecv = collectives.sendrecv


# Memory.
empty = collectives.empty
is_shared = collectives.is_shared


def _needs_grad(tensors: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def _group_needs_grad(tensors: Any, kind: str) -> bool:
    """:func:`_needs_grad` of a group, which must be a list: looking would use up a generator."""
    check_list(tensors, kind)
    return _needs_grad(tensors)


def _apply(function: Any, *arguments: Any) -> Any:
    return function.apply(*arguments)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: Name = None,
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> torch.Tensor:
    """Reduce the ranks' tensors element by element; see :meth:`horocache.collectives.api.Collectives.allreduce`.

    Differentiable for Average and Sum: the gradient is reduced in the same way. Gradients go by that backend.
    """
    op = resolve_op(op, average)
    if _needs_grad([tensor]):
        scales = (prescale_factor, postscale_factor)
        (output,) = _apply(autograd.Allreduce, name, compression, op, scales, process_set, backend, False, tensor)
        result: torch.Tensor = output
        return result
    call = (tensor, None, name, compression, op, prescale_factor, postscale_factor, process_set)
    return collectives.allreduce(*call, backend=backend)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: Name = None,
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> list[torch.Tensor]:
    """:func:`allreduce` of several tensors as one; nothing of the group is run before all ranks have all of it."""
    op = resolve_op(op, average)
    scales = (prescale_factor, postscale_factor)
    if _group_needs_grad(tensors, "grouped_allreduce"):
        call = (name, compression, op, scales, process_set, backend, True)
        return list(_apply(autograd.Allreduce, *call, *tensors))
    return collectives.grouped_allreduce(tensors, None, name, compression, op, *scales, process_set, backend=backend)


def allgather(
    tensor: torch.Tensor, name: Name = None, process_set: ProcessSet = global_process_set, *, backend: str | None = None
) -> torch.Tensor:
    """Concatenate the ranks' tensors along the first dimension; see :meth:`horocache.collectives.api.Collectives.allgather`.

    Differentiable: the gradient is averaged over the ranks, and each gets that of its rows.
    """
    if _needs_grad([tensor]):
        (output,) = _apply(autograd.Allgather, name, process_set, backend, False, tensor)
        result: torch.Tensor = output
        return result
    return collectives.allgather(tensor, name, process_set, backend=backend)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> list[torch.Tensor]:
    """:func:`allgather` of several tensors as one; results in the order of ``tensors``."""
    if _group_needs_grad(tensors, "grouped_allgather"):
        return list(_apply(autograd.Allgather, name, process_set, backend, True, *tensors))
    return collectives.grouped_allgather(tensors, name, process_set, backend=backend)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> torch.Tensor:
    """Copy one rank's tensor to all ranks; see :meth:`horocache.collectives.api.Collectives.broadcast`.

    Differentiable: the root gets the mean of the ranks' gradients, the others get zero.
    """
    if _needs_grad([tensor]):
        (output,) = _apply(autograd.Broadcast, root_rank, name, process_set, backend, False, tensor)
        result: torch.Tensor = output
        return result
    return collectives.broadcast(tensor, root_rank, name, process_set, backend=backend)


def grouped_broadcast(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> list[torch.Tensor]:
    """:func:`broadcast` of several tensors as one; new tensors, in the order of ``tensors``."""
    if _group_needs_grad(tensors, "grouped_broadcast"):
        return list(_apply(autograd.Broadcast, root_rank, name, process_set, backend, True, *tensors))
    return collectives.grouped_broadcast(tensors, root_rank, name, process_set, backend=backend)


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send a slice of rows to every rank and receive one from each; see :meth:`horocache.collectives.api.Collectives.alltoall`.

    Differentiable: the gradient's rows go back where the rows came from.
    """
    if not _needs_grad([tensor]):
        return collectives.alltoall(tensor, splits, name, process_set, backend=backend)
    output, received = _apply(autograd.Alltoall, splits, name, process_set, backend, False, tensor)
    if splits is None:
        result: torch.Tensor = output
        return result
    return output, received


def grouped_alltoall(
    tensors: Sequence[torch.Tensor],
    splits: Any = None,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> list[torch.Tensor] | list[tuple[torch.Tensor, torch.Tensor]]:
    """:func:`alltoall` of several tensors as one; see :meth:`horocache.collectives.api.Collectives.grouped_alltoall`."""
    if not _group_needs_grad(tensors, "grouped_alltoall"):
        return collectives.grouped_alltoall(tensors, splits, name, process_set, backend=backend)
    results = _apply(autograd.Alltoall, splits, name, process_set, backend, True, *tensors)
    outputs, received = results[: len(tensors)], results[len(tensors) :]
    return list(outputs) if splits is None else list(zip(outputs, received, strict=True))


def reducescatter(
    tensor: torch.Tensor,
    name: Name = None,
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    backend: str | None = None,
) -> torch.Tensor:
    """Reduce, and share the rows out; see :meth:`horocache.collectives.api.Collectives.reducescatter`.

    Differentiable for Average and Sum: the gradients are gathered.
    """
    scales = (prescale_factor, postscale_factor)
    if _needs_grad([tensor]):
        call = (name, compression, check_op(op), process_set, backend, scales, False)
        (output,) = _apply(autograd.Reducescatter, *call, tensor)
        result: torch.Tensor = output
        return result
    return collectives.reducescatter(tensor, name, compression, op, process_set, *scales, backend=backend)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: Name = None,
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    backend: str | None = None,
) -> list[torch.Tensor]:
    """:func:`reducescatter` of several tensors as one; results in the order of ``tensors``."""
    scales = (prescale_factor, postscale_factor)
    if _group_needs_grad(tensors, "grouped_reducescatter"):
        call = (name, compression, check_op(op), process_set, backend, scales, True)
        return list(_apply(autograd.Reducescatter, *call, *tensors))
    return collectives.grouped_reducescatter(tensors, name, compression, op, process_set, *scales, backend=backend)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> Callable[[], torch.Tensor]:
    """Start to add up or average the ranks' sparse tensors, by gathering indices and values.

    Args:
        tensor: a COO tensor; its shape must be equal on all ranks, the number of its values need not be.
        name: identifies the tensor across ranks.
        op: Average or Sum.
        process_set: the ranks that take part.
        backend: what runs it; all ranks must name the same. None leaves it to the selector.

    Returns:
        A function, to be called once, that waits and returns the result: a COO tensor, not coalesced.

    Raises:
        UnsupportedError: another ``op``, or a tensor that is not COO.
    """
    if check_op(op) not in (Average, Sum):
        raise UnsupportedError(f"sparse tensors can be reduced with Average or Sum, not with op={op}.")
    if tensor.layout is not torch.sparse_coo:
        raise UnsupportedError(f"sparse_allreduce_async takes tensors of layout torch.sparse_coo, not {tensor.layout}.")
    # Rows are what an allgather concatenates, so each index becomes a row. One group: both are submitted, or neither.
    parts = [tensor._indices().t(), tensor._values()]
    handle = collectives.allgather_to_average_async(parts, name, process_set, backend=backend)

    def finish() -> torch.Tensor:
        (indices, values), divisor = synchronize(handle)
        if op == Average:
            values = values / divisor
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)

    return finish
