"""The collectives on TensorFlow's tensors, in eager mode and in graphs, with Horovod's arguments.

What an operation does, its names and its errors are described at :class:`horocache.collectives.api.Collectives`. Errors that the
ranks find together are TensorFlow's: ``tf.errors.FailedPreconditionError`` where they disagree,
``InvalidArgumentError`` for a name that is in flight, ``UnknownError`` for a rank that died, ``AbortedError`` after
a shutdown, ``DeadlineExceededError`` for a tensor that some rank never submits; all with horocache's message.

``device_dense`` and ``device_sparse`` are where TensorFlow puts the result; data is reduced in the memory of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horocache.tensorflow import adasum, calls, order
from horocache.tensorflow.autograph import as_it_is
from horocache.tensorflow.calls import Call
from horocache.tensorflow.compression import Compression
from horocache.tensorflow.naming import operation_name

import tensorflow as tf
from horocache.base.operation_codes import (
    OP_ALLGATHER,
    OP_ALLREDUCE,
    OP_ALLTOALL,
    OP_BARRIER,
    OP_BROADCAST,
    OP_JOIN,
    OP_REDUCESCATTER,
)
from horocache.collectives.api import Adasum, Average, Name, Sum, check_op, resolve_op
from horocache.collectives.arguments import check_list, checked_root
from horocache.collectives.transforms import AnyCompressor, layer_list
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.data_parallel.vjp import member_name
from horocache.errors import InvalidArgumentError, UnsupportedError


def _dense(tensors: Sequence[Any]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(tensor) for tensor in tensors]


def reduce_tensors(
    tensors: Sequence[tf.Tensor], call: Call, compression: AnyCompressor | None, device: str = ""
) -> list[tf.Tensor]:
    """Allreduce of tensors, through the layers of a call; ``call`` has everything else."""
    layers = layer_list(compression, call.group)
    with tf.device(device or None):
        encoded, contexts = layers.encode(list(tensors))
        reduced = calls.run_into(encoded, call._replace(layers=layers.signature))
        return layers.decode(reduced, contexts)


def _allreduce_slices(slices: tf.IndexedSlices, call: Call, device: str) -> tf.IndexedSlices:
    """Gather values and indices; duplicates are added up by who uses them."""
    if call.reduce_op not in (Average, Sum):
        raise UnsupportedError(f"IndexedSlices can be reduced with Average or Sum, not with op={call.reduce_op}.")
    if call.scales != calls.ONE:
        raise UnsupportedError("prescale_factor and postscale_factor are not for IndexedSlices.")
    with tf.device(device or None):
        gathered = calls.run([slices.values, slices.indices], call._replace(op=OP_ALLGATHER, reduce_op=Sum, group=True))
        values, indices = gathered.tensors
        values.set_shape([None, *slices.values.shape[1:]])
        indices.set_shape([None])
        if call.reduce_op == Average:
            values = values / tf.cast(gathered.divisor, values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


@as_it_is
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    *,
    backend: str | None = None,
) -> Any:
    """Reduce the ranks' tensors element by element; see :meth:`horocache.collectives.api.Collectives.allreduce`.

    Differentiable for Average and Sum. ``tf.IndexedSlices`` are gathered instead, which gives the same sum; their
    values are divided for Average.

    Args:
        tensor: a tensor, a variable, ``tf.IndexedSlices``, or what ``tf.convert_to_tensor`` takes.
        average: deprecated, use ``op``.
        device_dense: where the result of a tensor is to be.
        device_sparse: where that of ``tf.IndexedSlices`` is to be.
        compression: a class of ``Compression``.
        op: as for :meth:`horocache.collectives.api.Collectives.allreduce`.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        name: identifies the tensor across ranks, within name scopes; by default made from the program's order, or from
            the place in the graph.
        process_set: the ranks that take part.
        ignore_name_scope: leave name scopes out of the name.
        backend: what runs it; all ranks must name the same.

    Raises:
        ValueError: both ``op`` and ``average``, or what this rank can see to be wrong. UnsupportedError: reductions
            that are not defined for the type, or for ``tf.IndexedSlices``; XLA would compile it.
    """
    op = resolve_op(op, average)
    scales = (prescale_factor, postscale_factor)
    full = operation_name("allreduce", name, ignore_name_scope)
    call = Call(OP_ALLREDUCE, full, process_set, op, scales, backend=backend)
    if isinstance(tensor, tf.IndexedSlices):
        return _allreduce_slices(tensor, call, device_sparse)
    tensors = _dense([tensor])
    if op == Adasum:
        return adasum.allreduce(tensors, call, compression)[0]
    return reduce_tensors(tensors, call, compression, device_dense)[0]


@as_it_is
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: Name = None,
    *,
    backend: str | None = None,
) -> list[Any]:
    """:func:`allreduce` of several tensors as one: nothing of the group is run before all ranks have all of it.

    ``tf.IndexedSlices`` among them are reduced by themselves.
    """
    op = resolve_op(op, average)
    check_list(tensors, "grouped_allreduce")
    scales = (prescale_factor, postscale_factor)
    full = operation_name("grouped_allreduce", name, ignore_name_scope)
    call = Call(OP_ALLREDUCE, full, process_set, op, scales, backend=backend, group=True)
    sparse = [isinstance(tensor, tf.IndexedSlices) for tensor in tensors]
    dense = _dense([tensor for tensor, is_sparse in zip(tensors, sparse, strict=True) if not is_sparse])
    if not dense:
        reduced: list[tf.Tensor] = []
    elif op == Adasum:
        reduced = adasum.allreduce(dense, call, compression)
    else:
        reduced = reduce_tensors(dense, call, compression, device_dense)
    rest = iter(reduced)
    results = []
    for index, (tensor, is_sparse) in enumerate(zip(tensors, sparse, strict=True)):
        if is_sparse:
            own = operation_name("allreduce", member_name(name, index + 1), ignore_name_scope)
            results.append(_allreduce_slices(tensor, call._replace(name=own), device_sparse))
        else:
            results.append(next(rest))
    return results


def _gather(tensors: Sequence[tf.Tensor], call: Call) -> list[tf.Tensor]:
    rows = [tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor for tensor in tensors]
    results = calls.run(rows, call).tensors
    for result, tensor in zip(results, rows, strict=True):
        result.set_shape(_any_rows(tensor))
    return results


def _any_rows(tensor: tf.Tensor) -> tf.TensorShape:
    """The shape of a tensor, whatever number of rows it has."""
    if tensor.shape.rank is None:
        return tf.TensorShape(None)
    return tf.TensorShape([None, *tensor.shape[1:]])


@as_it_is
def allgather(
    tensor: Any,
    name: Name = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> tf.Tensor:
    """Concatenate the ranks' tensors along the first dimension; see :meth:`horocache.collectives.api.Collectives.allgather`.

    Differentiable: the gradient is averaged over the ranks, and each gets that of its rows.
    """
    full = operation_name("allgather", name, ignore_name_scope)
    return _gather(_dense([tensor]), Call(OP_ALLGATHER, full, process_set, backend=backend))[0]


@as_it_is
def grouped_allgather(
    tensors: Sequence[Any],
    name: Name = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> list[tf.Tensor]:
    """:func:`allgather` of several tensors as one; results in the order of ``tensors``."""
    check_list(tensors, "grouped_allgather")
    full = operation_name("grouped_allgather", name, ignore_name_scope)
    return _gather(_dense(tensors), Call(OP_ALLGATHER, full, process_set, backend=backend, group=True))


@as_it_is
def broadcast(
    tensor: Any,
    root_rank: int,
    name: Name = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> tf.Tensor:
    """Copy one rank's tensor to all ranks; see :meth:`horocache.collectives.api.Collectives.broadcast`.

    Differentiable: the root gets the mean of the ranks' gradients, the others get zero.
    """
    root = checked_root("broadcast", root_rank, process_set)
    full = operation_name("broadcast", name, ignore_name_scope)
    return calls.run_into(_dense([tensor]), Call(OP_BROADCAST, full, process_set, root=root, backend=backend))[0]


@as_it_is
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> list[Any]:
    """Overwrite variables with the root's values, as one group for each element type.

    Args:
        variables: of TensorFlow or of Keras, in the same order on all ranks.
        root_rank: whose values to take; a global rank in the set.
        name: identifies the operation across ranks.
        process_set: the ranks that take part.
        backend: as for :func:`allreduce`.

    Returns:
        The variables. In a graph that a session runs: for each variable its assignment, which has the new value; a
        variable is overwritten when the session runs its assignment.
    """
    if not isinstance(variables, (list, tuple)):
        raise InvalidArgumentError(f"broadcast_ needs a list of variables, not {variables!r}.")
    root = checked_root("broadcast_", root_rank, process_set)
    by_dtype: dict[Any, list[int]] = {}
    for index, variable in enumerate(variables):
        by_dtype.setdefault(tf.as_dtype(variable.dtype).base_dtype, []).append(index)
    groups = []
    for dtype, members in by_dtype.items():
        full = operation_name("grouped_broadcast", None if name is None else f"{name}.{dtype.name}")
        call = Call(OP_BROADCAST, full, process_set, root=root, backend=backend, group=True)
        groups.append(([variables[index] for index in members], call))
    for same, call in groups:  # before the first is started
        calls.check_types(same, call, [f"variable {variable.name!r}" for variable in same])
    started = [calls.enqueue_into(_dense(same), call) for same, call in groups]
    if not started:
        return list(variables)
    numbers = [index for members in by_dtype.values() for index in members]
    assigned = {
        index: variables[index].assign(value) for index, value in zip(numbers, calls.wait(started), strict=True)
    }
    return [assigned[index] for index in range(len(variables))] if order.runs_in_parts() else list(variables)


@as_it_is
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Name = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> Any:
    """Send a slice of rows to every rank and receive one from each; see :meth:`horocache.collectives.api.Collectives.alltoall`.

    Differentiable: the gradient's rows go back where the rows came from.

    Args:
        tensor: shape ``(n, ...)``; ``n`` may differ from rank to rank, the other dimensions may not.
        splits: a tensor or a list with one integer for each rank: how many rows go to it. Without it the rows are
            shared out evenly.
        name: as for :func:`allreduce`.
        ignore_name_scope: as for :func:`allreduce`.
        process_set: the ranks that take part.
        backend: as for :func:`allreduce`.

    Returns:
        The rows received, in rank order; with ``splits`` the pair of them and the number of rows from each rank, int32.
    """
    (source,) = _dense([tensor])
    if source.shape.rank == 0:
        raise InvalidArgumentError("alltoall does not support scalar inputs; there are no rows to send.")
    counts = None
    if splits is not None:
        counts = tf.convert_to_tensor(splits)
        if not counts.dtype.is_integer or counts.shape.rank not in (None, 1):
            raise InvalidArgumentError(f"alltoall expects a 1D splits tensor of integers, not {counts!r}.")
        counts = tf.cast(counts, tf.int64)
        source = source[: tf.reduce_sum(counts)]
    full = operation_name("alltoall", name, ignore_name_scope)
    results = calls.run([source], Call(OP_ALLTOALL, full, process_set, backend=backend), counts)
    output, rows = results.tensors[0], results.rows[0]
    output.set_shape(_any_rows(source))
    rows.set_shape([process_set.size()])
    return output if splits is None else (output, rows)


@as_it_is
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    backend: str | None = None,
) -> tf.Tensor:
    """Reduce, and share the rows out; see :meth:`horocache.collectives.api.Collectives.reducescatter`. Differentiable."""
    full = operation_name("reducescatter", name, ignore_name_scope)
    scales = (prescale_factor, postscale_factor)
    call = Call(OP_REDUCESCATTER, full, process_set, check_op(op), scales, backend=backend)
    return _reducescatter(_dense([tensor]), call, compression, device_dense)[0]


@as_it_is
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Name = None,
    ignore_name_scope: bool = False,
    *,
    backend: str | None = None,
) -> list[tf.Tensor]:
    """:func:`reducescatter` of several tensors as one; results in the order of ``tensors``."""
    check_list(tensors, "grouped_reducescatter")
    full = operation_name("grouped_reducescatter", name, ignore_name_scope)
    scales = (prescale_factor, postscale_factor)
    call = Call(OP_REDUCESCATTER, full, process_set, check_op(op), scales, backend=backend, group=True)
    return _reducescatter(_dense(tensors), call, compression, device_dense)


def _reducescatter(
    tensors: list[tf.Tensor], call: Call, compression: AnyCompressor | None, device: str
) -> list[tf.Tensor]:
    layers = layer_list(compression, call.group)
    with tf.device(device or None):
        encoded, contexts = layers.encode(tensors)
        results = calls.run(encoded, call._replace(layers=layers.signature)).tensors
        for result, tensor in zip(results, encoded, strict=True):
            result.set_shape(_any_rows(tensor))
        return layers.decode(results, contexts)


@as_it_is
def join(process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Say that this rank has no more data, and wait until all ranks have; see :func:`horocache.join`.

    Returns:
        The rank that joined last, an int32 scalar.
    """
    return calls.run_without_tensors(Call(OP_JOIN, "", process_set))


@as_it_is
def barrier(process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Wait until every rank of the set is here; in a graph, the operation that does."""
    return calls.run_without_tensors(Call(OP_BARRIER, "", process_set))
