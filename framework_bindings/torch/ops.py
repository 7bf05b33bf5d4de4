"""The collectives on torch tensors, differentiable where they are blocking and return new tensors.

Argument orders are Horovod's. The rules for names and errors are those of
:class:`horocache.collectives.api.Collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from horocache.collectives.api import Average, Name, Sum, check_op, resolve_op, synchronize
from horocache.collectives.arguments import check_list
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import UnsupportedError

from . import autograd
from .adapter import collectives
from .compression import Compression

# These are not differentiable: they are asynchronous, or store their result in their input.
allgather_ = collectives.allgather_
allgather_async = collectives.allgather_async
allgather_async_ = collectives.allgather_async_
allgatherv_async = collectives.allgatherv_async
allreduce_ = collectives.allreduce_
allreduce_async = collectives.allreduce_async
allreduce_async_ = collectives.allreduce_async_
allreduce_many_async_ = collectives.allreduce_many_async_
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

# These are not differentiable: some ranks get no result to differentiate, or parts of a tensor may overlap.
allgatherv = collectives.allgatherv
alltoallv = collectives.alltoallv
gather = collectives.gather
gatherv = collectives.gatherv
reduce = collectives.reduce
reducescatterv = collectives.reducescatterv
scatter = collectives.scatter
scatterv = collectives.scatterv

# Messages are not differentiable: a rank's graph does not record the operations of its peer.
isend = collectives.isend
irecv = collectives.irecv
send = collectives.send
recv = collectives.recv
sendrecv = collectives.sendrecv


# Tensors in shared memory.
empty = empty_shared = collectives.empty_shared
is_shared = collectives.is_shared


def _needs_grad(tensors: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def _group_needs_grad(tensors: Any, kind: str) -> bool:
    """Return :func:`_needs_grad` of a group, which must be a list: the check would consume a generator."""
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
    """Reduce the ranks' tensors element by element; every rank gets the result.

    Differentiable for Average and Sum: the backward pass reduces the gradient in the same way, on the same backend. In
    the backward pass, any other op raises UnsupportedError.

    Args:
        tensor: the same shape and dtype on all ranks, any shape. Not modified.
        average: deprecated, use ``op``.
        name: identifies the tensor across ranks; generated from the program order when omitted.
        compression: a class of ``Compression``, the same on all ranks.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits, which are
            logical for bool. Integers are added in their own type, in which a sum may wrap around; averages of integers
            are truncated towards zero. For floating-point tensors also Adasum; the number of ranks must then be a power
            of two.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the
            same on all ranks. None: the selector chooses.

    Returns:
        A new tensor of the same shape and dtype, with the same bits on every rank.

    Raises:
        MismatchError: shape, dtype, op, scales, compression or backend differ between ranks; names two ranks and both
            values.
        InvalidArgumentError: both ``op`` and ``average`` are given, or an argument is invalid on this rank.
        UnsupportedError: the backend does not exist; the device, layout or dtype of the tensor is not supported; or the
            op is not defined for the dtype.
        NotInitializedError: before ``init()``.
        DuplicateNameError: an operation of this name is in flight.
        PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
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
    """Reduce several tensors as one group; every rank gets all results.

    The operation starts when all ranks have submitted all tensors of the group. Differentiable for Average and Sum: the
    backward pass reduces the gradients in the same way, on the same backend. In the backward pass, any other op raises
    UnsupportedError.

    Args:
        tensors: a list with at least one tensor; the same shapes and dtypes on all ranks. Not modified.
        average: deprecated, use ``op``.
        name: identifies the group across ranks; generated from the program order when omitted.
        compression: a class of ``Compression``, the same on all ranks.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits, which are
            logical for bool. Integers are added in their own type, in which a sum may wrap around; averages of integers
            are truncated towards zero. For floating-point tensors also Adasum; the number of ranks must then be a power
            of two.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the
            same on all ranks. None: the selector chooses.

    Returns:
        New tensors of the same shapes and dtypes, in the order of ``tensors``.

    Raises:
        MismatchError: shapes, dtypes, op, scales, compression or backend differ between ranks; names two ranks and both
            values.
        InvalidArgumentError: both ``op`` and ``average`` are given, or an argument is invalid on this rank.
        UnsupportedError: the backend does not exist; the device, layout or dtype of a tensor is not supported; or the
            op is not defined for a dtype.
        NotInitializedError: before ``init()``.
        DuplicateNameError: an operation of this name is in flight.
        PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
    """
    op = resolve_op(op, average)
    scales = (prescale_factor, postscale_factor)
    if _group_needs_grad(tensors, "grouped_allreduce"):
        call = (name, compression, op, scales, process_set, backend, True)
        return list(_apply(autograd.Allreduce, *call, *tensors))
    return collectives.grouped_allreduce(tensors, None, name, compression, op, *scales, process_set, backend=backend)


def allgather(
    tensor: torch.Tensor, name: Name = None, process_set: ProcessSet = global_process_set, *, backend: str | None = None
) -> torch.Tensor:
    """Concatenate the ranks' tensors along the first dimension; every rank gets the result.

    Differentiable: the backward pass averages the gradient over the ranks; each rank gets the rows of its own tensor.

    Args:
        tensor: shape ``(n_r, ...)``. The number of rows ``n_r`` may differ between ranks and may be 0; the other
            dimensions may not differ. A scalar counts as one row. Not modified.
        name: identifies the tensor across ranks; generated from the program order when omitted.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the
            same on all ranks. None: the selector chooses.

    Returns:
        A new tensor of shape ``(sum of n_r, ...)``, in rank order.

    Raises:
        MismatchError: dtype, another dimension than the first, or backend differ between ranks; names two ranks and
            both values.
        InvalidArgumentError: an argument is invalid on this rank.
        UnsupportedError: the backend does not exist; or the device, layout or dtype of a tensor is not supported.
        NotInitializedError: before ``init()``.
        DuplicateNameError: an operation of this name is in flight.
        PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
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
    """Concatenate the ranks' tensors along the first dimension, for several tensors as one group.

    The operation starts when all ranks have submitted all tensors of the group. Differentiable: the backward pass
    averages the gradients over the ranks; each rank gets the rows of its own tensors.

    Args:
        tensors: a list with at least one tensor. Numbers of rows may differ between ranks and may be 0; the other
            dimensions may not differ. A scalar counts as one row. Not modified.
        name: identifies the group across ranks; generated from the program order when omitted.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the
            same on all ranks. None: the selector chooses.

    Returns:
        New tensors with the rows of all ranks in rank order, in the order of ``tensors``.

    Raises:
        MismatchError: dtypes, other dimensions than the first, or backend differ between ranks; names two ranks and
            both values.
        InvalidArgumentError: an argument is invalid on this rank.
        UnsupportedError: the backend does not exist; or the device, layout or dtype of a tensor is not supported.
        NotInitializedError: before ``init()``.
        DuplicateNameError: an operation of this name is in flight.
        PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
    """
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
    """Copy the root's tensor to all ranks.

    Differentiable: the root gets the mean of the ranks' gradients, the other ranks get zeros.

    Args:
        tensor: the same shape and dtype on all ranks, any shape; the values matter on the root only. Not modified.
        root_rank: a global rank in the set.
        name: identifies the tensor across ranks; generated from the program order when omitted.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the
            same on all ranks. None: the selector chooses.

    Returns:
        A new tensor with the root's values.

    Raises:
        MismatchError: shape, dtype, root or backend differ between ranks; names two ranks and both values.
        InvalidArgumentError: the root is not in the set, or an argument is invalid on this rank.
        UnsupportedError: the backend does not exist; or the device, layout or dtype of a tensor is not supported.
        NotInitializedError: before ``init()``.
        DuplicateNameError: an operation of this name is in flight.
        PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
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
    """Copy several tensors of the root to all ranks, as one group.

    The operation starts when all ranks have submitted all tensors of the group. Differentiable: the root gets the means
    of the ranks' gradients, the other ranks get zeros.

    Args:
        tensors: a list with at least one tensor; the same shapes and dtypes on all ranks. Values matter on the root
            only. Not modified.
        root_rank: a global rank in the set.
        name: identifies the group across ranks; generated from the program order when omitted.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the
            same on all ranks. None: the selector chooses.

    Returns:
        New tensors with the root's values, in the order of ``tensors``.

    Raises:
        MismatchError: shapes, dtypes, root or backend differ between ranks; names two ranks and both values.
        InvalidArgumentError: the root is not in the set, or an argument is invalid on this rank.
        UnsupportedError: the backend does not exist; or the device, layout or dtype of a tensor is not supported.
        NotInitializedError: before ``init()``.
        DuplicateNameError: an operation of this name is in flight.
        PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
    """
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
    """Send a slice of rows to every rank and receive one from each.

    Differentiable: the backward pass sends each row of the gradient to the rank that the row came from.

    Args:
        tensor: shape ``(n, ...)``. The number of rows ``n`` may differ between ranks; the other dimensions may not. Not
            modified.
        splits: one integer for each rank, as a sequence or a tensor: the number of rows to send to it, in rank order.
            None: every rank gets equally many rows, and ``n`` must be a multiple of the number of ranks.
        name: identifies the tensor across ranks; generated from the program order when omitted.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the
            same on all ranks. None: the selector chooses.

    Returns:
        A new tensor with the received rows, in rank order; with ``splits``, the pair of this tensor and the number of
        rows from each rank.

    Raises:
        MismatchError: dtype, another dimension than the first, or backend differ between ranks; names two ranks and
            both values.
        InvalidArgumentError: the splits do not fit the tensor or the number of ranks, or an argument is invalid on this
            rank.
        UnsupportedError: the backend does not exist; or the device, layout or dtype of a tensor is not supported.
        NotInitializedError: before ``init()``.
        DuplicateNameError: an operation of this name is in flight.
        PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
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
    """Send a slice of rows of each tensor to every rank and receive one from each, as one group.

    The operation starts when all ranks have submitted all tensors of the group. Differentiable: the backward pass sends
    each row of the gradients to the rank that the row came from.

    Args:
        tensors: a list with at least one tensor, of shapes ``(n, ...)``. Numbers of rows may differ between ranks; the
            other dimensions may not. Not modified.
        splits: one integer for each rank, as a sequence or a tensor, for all tensors of the group: the number of rows
            to send to it, in rank order. None: every rank gets equally many rows of each tensor, whose ``n`` must be a
            multiple of the number of ranks.
        name: identifies the group across ranks; generated from the program order when omitted.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the
            same on all ranks. None: the selector chooses.

    Returns:
        For each tensor, in order, a new tensor with the received rows in rank order; with ``splits``, the pair of this
        tensor and the number of rows from each rank.

    Raises:
        MismatchError: dtypes, other dimensions than the first, or backend differ between ranks; names two ranks and
            both values.
        InvalidArgumentError: the splits do not fit a tensor or the number of ranks, or an argument is invalid on this
            rank.
        UnsupportedError: the backend does not exist; or the device, layout or dtype of a tensor is not supported.
        NotInitializedError: before ``init()``.
        DuplicateNameError: an operation of this name is in flight.
        PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
    """
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
    """Reduce the ranks' tensors and give each rank its share of the rows of the result, in rank order.

    Differentiable for Average and Sum: the backward pass scales the gradients and gathers them. In the backward pass,
    any other op raises UnsupportedError.

    Args:
        tensor: shape ``(n, ...)``, the same on all ranks; not a scalar. Not modified. If ``n`` is not a multiple of the
            number of ranks, the first ranks get one more row.
        name: identifies the tensor across ranks; generated from the program order when omitted.
        compression: a class of ``Compression``, the same on all ranks.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits, which are
            logical for bool. Integers are added in their own type, in which a sum may wrap around; averages of integers
            are truncated towards zero.
        process_set: the ranks that take part.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the
            same on all ranks. None: the selector chooses.

    Returns:
        A new tensor with this rank's rows.

    Raises:
        MismatchError: shape, dtype, op, scales, compression or backend differ between ranks; names two ranks and both
            values.
        InvalidArgumentError: an argument is invalid on this rank.
        UnsupportedError: the backend does not exist; the device, layout or dtype of the tensor is not supported; or the
            op is Adasum or not defined for the dtype.
        NotInitializedError: before ``init()``.
        DuplicateNameError: an operation of this name is in flight.
        PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
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
    """Reduce several tensors as one group and give each rank its share of the rows of each result.

    The operation starts when all ranks have submitted all tensors of the group. Differentiable for Average and Sum: the
    backward pass scales the gradients and gathers them. In the backward pass, any other op raises UnsupportedError.

    Args:
        tensors: a list with at least one tensor, of shapes ``(n, ...)``, the same on all ranks; no scalars. Not
            modified. If ``n`` is not a multiple of the number of ranks, the first ranks get one more row.
        name: identifies the group across ranks; generated from the program order when omitted.
        compression: a class of ``Compression``, the same on all ranks.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits, which are
            logical for bool. Integers are added in their own type, in which a sum may wrap around; averages of integers
            are truncated towards zero.
        process_set: the ranks that take part.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the
            same on all ranks. None: the selector chooses.

    Returns:
        New tensors with this rank's rows, in the order of ``tensors``.

    Raises:
        MismatchError: shapes, dtypes, op, scales, compression or backend differ between ranks; names two ranks and both
            values.
        InvalidArgumentError: an argument is invalid on this rank.
        UnsupportedError: the backend does not exist; the device, layout or dtype of a tensor is not supported; or the
            op is Adasum or not defined for a dtype.
        NotInitializedError: before ``init()``.
        DuplicateNameError: an operation of this name is in flight.
        PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
    """
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
    """Start a sum or an average of the ranks' sparse tensors, computed by gathering indices and values.

    Args:
        tensor: a COO tensor of the same shape on all ranks; the number of values may differ.
        name: identifies the tensor across ranks.
        op: Average or Sum.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"``; the same on all ranks. None: the selector
            chooses.

    Returns:
        A function to call once. It waits and returns the result, a COO tensor that is not coalesced.

    Raises:
        UnsupportedError: ``op`` is neither Average nor Sum, or the tensor is not COO.
    """
    if check_op(op) not in (Average, Sum):
        raise UnsupportedError(f"sparse tensors can be reduced with Average or Sum, not with op={op}.")
    if tensor.layout is not torch.sparse_coo:
        raise UnsupportedError(f"sparse_allreduce_async takes tensors of layout torch.sparse_coo, not {tensor.layout}.")
    # An allgather concatenates rows, so each index becomes a row. As one group, both are submitted or neither.
    parts = [tensor._indices().t(), tensor._values()]
    handle = collectives.allgather_to_average_async(parts, name, process_set, backend=backend)

    def finish() -> torch.Tensor:
        (indices, values), divisor = synchronize(handle)
        if op == Average:
            values = values / divisor
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)

    return finish
