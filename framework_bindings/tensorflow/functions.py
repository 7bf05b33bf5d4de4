"""The collectives on TensorFlow's tensors, in eager mode and in graphs, with Horovod's arguments.

The ranks match tensors by name. Without a name, an eager operation is named by the order of the calls in the program,
which must be the same on all ranks, and an operation of a graph by its position in the graph.

An error that this rank detects alone is raised while the graph is built or the eager operation is called. An error that
the ranks detect together is one of TensorFlow's, with horocache's message:

* ``tf.errors.FailedPreconditionError``: the ranks disagree about an operation;
* ``tf.errors.InvalidArgumentError``: the name is already in flight;
* ``tf.errors.UnknownError``: a rank died;
* ``tf.errors.AbortedError``: a rank shut horocache down or aborted the job;
* ``tf.errors.DeadlineExceededError``: a rank did not submit the tensor in time.

``device_dense`` and ``device_sparse`` select the device of the result; data is reduced in the memory of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from horocache.collectives.compression import refuse_codec
from horocache.collectives.transforms import AnyCompressor, layer_list
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.data_parallel.vjp import member_name
from horocache.errors import InvalidArgumentError, UnsupportedError

from . import adasum, calls, order
from .autograph import as_it_is
from .calls import Call
from .compression import Compression
from .naming import operation_name


def _dense(tensors: Sequence[Any]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(tensor) for tensor in tensors]


def reduce_tensors(
    tensors: Sequence[tf.Tensor], call: Call, compression: AnyCompressor | None, device: str = ""
) -> list[tf.Tensor]:
    """Allreduce tensors, compressed by ``compression``, on ``device``; ``call`` holds everything else."""
    layers = layer_list(compression, call.group)
    with tf.device(device or None):
        encoded, contexts = layers.encode(list(tensors))
        reduced = calls.run_into(encoded, call._replace(layers=layers.signature))
        return layers.decode(reduced, contexts)


def _allreduce_slices(slices: tf.IndexedSlices, call: Call, device: str) -> tf.IndexedSlices:
    """Gather values and indices. Duplicate indices stay; a user of the slices adds their values up."""
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
    """Reduce the ranks' tensors element by element; every rank gets the result.

    Differentiable for Average and Sum. ``tf.IndexedSlices`` are gathered instead, which gives the same sum; for Average
    their values are divided by the number of ranks.

    Args:
        tensor: a tensor, a variable, or a value for ``tf.convert_to_tensor``, with the same shape and dtype on all
            ranks; or ``tf.IndexedSlices``, which may have different numbers of rows.
        average: deprecated, use ``op``.
        device_dense: the device of the result, for a tensor.
        device_sparse: the device of the result, for ``tf.IndexedSlices``.
        compression: a class of ``Compression``, the same on all ranks; ``tf.IndexedSlices`` are sent uncompressed.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits; for
            floating-point tensors also Adasum, if the number of ranks is a power of two. ``tf.IndexedSlices`` support
            Average and Sum, without scales.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        name: identifies the tensor across ranks, within name scopes; by default generated from the program order, or
            in a graph from the operation's position.
        process_set: the ranks that take part.
        ignore_name_scope: True leaves name scopes out of the name.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; all
            ranks must name the same one. None leaves the choice to the selector.

    Returns:
        A tensor of the same shape and dtype, with the same bits on every rank; or ``tf.IndexedSlices``.

    Raises:
        ValueError: ``op`` and ``average`` are both given, or an argument is invalid on this rank.
        UnsupportedError: ``op`` or a scale is not supported for ``tf.IndexedSlices``, the element type or the number
            of ranks; or XLA would compile the operation.
        tf.errors.UnimplementedError: the element type cannot be sent, or the reduction is not defined for it.
        tf.errors.FailedPreconditionError: shape, dtype, op, scales, compression or backend differ between ranks; names
            both ranks and both values.
    """
    op = resolve_op(op, average)
    refuse_codec(compression)
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
    """Reduce several tensors as one group, which runs once every rank has submitted all of its tensors.

    Every tensor is reduced element by element, and every rank gets the results. Differentiable for Average and Sum.
    ``tf.IndexedSlices`` in the list are gathered, each separately from the group.

    Args:
        tensors: a list or tuple of tensors, variables, values for ``tf.convert_to_tensor``, or ``tf.IndexedSlices``; in
            the same order on all ranks.
        average: deprecated, use ``op``.
        device_dense: the device of the results, for tensors.
        device_sparse: the device of the results, for ``tf.IndexedSlices``.
        compression: a class of ``Compression``, the same on all ranks; ``tf.IndexedSlices`` are sent uncompressed.
        op: Average (the default), Sum, Min, Max, Product, And, Or, Xor or Adasum, as for :func:`allreduce`.
        prescale_factor: multiplies every rank's tensors before the reduction.
        postscale_factor: multiplies the results.
        process_set: the ranks that take part.
        ignore_name_scope: True leaves name scopes out of the name.
        name: identifies the group across ranks, within name scopes; generated when omitted.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        The results in the order of ``tensors``.

    Raises:
        ValueError, UnsupportedError, tf.errors.OpError: in the same cases as :func:`allreduce`; also if ``tensors`` is
            empty or not a list.
    """
    op = resolve_op(op, average)
    check_list(tensors, "grouped_allreduce")
    refuse_codec(compression)
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
    """Return the shape of a tensor with an unknown number of rows."""
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
    """Concatenate the ranks' tensors along the first dimension; every rank gets the result.

    Differentiable: the gradient is averaged over the ranks, and each rank gets the gradient of its rows.

    Args:
        tensor: shape ``(n_r, ...)``; ``n_r`` may differ between ranks and may be 0, the other dimensions may not
            differ. A scalar counts as one row.
        name: identifies the tensor across ranks, within name scopes; generated when omitted.
        ignore_name_scope: True leaves name scopes out of the name.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        A tensor of shape ``(sum of n_r, ...)``, in rank order.

    Raises:
        tf.errors.FailedPreconditionError: dtype or another dimension differs between ranks; names both ranks and both
            values.
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
    """Concatenate the ranks' tensors along the first dimension, for several tensors as one group.

    Differentiable: the gradients are averaged over the ranks, and each rank gets the gradients of its rows.

    Args:
        tensors: a list or tuple of tensors, in the same order on all ranks. The number of rows of each may differ
            between ranks, the other dimensions may not. A scalar counts as one row.
        name: identifies the group across ranks, within name scopes; generated when omitted.
        ignore_name_scope: True leaves name scopes out of the name.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        The concatenated tensors in the order of ``tensors``, with rows in rank order.

    Raises:
        ValueError: ``tensors`` is empty or not a list.
        tf.errors.FailedPreconditionError: dtype or another dimension differs between ranks; names both ranks and both
            values.
    """
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
    """Copy one rank's tensor to all ranks.

    Differentiable: the root gets the mean of the ranks' gradients, the other ranks get zeros.

    Args:
        tensor: the same shape and dtype on all ranks; only the root's values are used.
        root_rank: the rank that sends its values; a global rank in the set.
        name: identifies the tensor across ranks, within name scopes; generated when omitted.
        ignore_name_scope: True leaves name scopes out of the name.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        A tensor with the root's values.

    Raises:
        ValueError: ``root_rank`` is not in the process set.
        tf.errors.FailedPreconditionError: shape, dtype or root differ between ranks; names both ranks and both values.
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
        variables: a list or tuple of TensorFlow or Keras variables; the same shapes and types in the same order on all
            ranks.
        root_rank: the rank that sends its values; a global rank in the set.
        name: identifies the operation across ranks; generated when omitted.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        The variables. In a graph that a session runs: for each variable its assignment, which has the new value; a
        variable is overwritten when the session runs its assignment.

    Raises:
        ValueError: ``root_rank`` is not in the process set, or ``variables`` is not a list.
        tf.errors.UnimplementedError: the element type of a variable cannot be sent; names the variable.
        tf.errors.FailedPreconditionError: the variables or the roots differ between ranks.
    """
    if not isinstance(variables, (list, tuple)):
        raise InvalidArgumentError(f"broadcast_ needs a list of variables, not {variables!r}.")
    root = checked_root("broadcast_", root_rank, process_set)
    by_dtype: dict[Any, list[int]] = {}
    for index, variable in enumerate(variables):
        by_dtype.setdefault(tf.as_dtype(variable.dtype).base_dtype, []).append(index)
    groups: list[tuple[list[Any], Call]] = []
    for dtype, members in by_dtype.items():
        full = operation_name("grouped_broadcast", None if name is None else f"{name}.{dtype.name}")
        call = Call(OP_BROADCAST, full, process_set, root=root, backend=backend, group=True, position=len(groups))
        groups.append(([variables[index] for index in members], call))
    for same, call in groups:  # all groups, before the first one is submitted
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
    """Send a slice of rows to every rank and receive one from each.

    Differentiable: the rows of the gradient go back to the ranks that the rows came from.

    Args:
        tensor: shape ``(n, ...)``; ``n`` may differ between ranks, the other dimensions may not. Not a scalar.
        splits: a tensor or a list with one integer per rank: the number of rows for that rank, in rank order. If it is
            None, every rank gets the same number of rows, and ``n`` must be a multiple of the number of ranks.
        name: identifies the tensor across ranks, within name scopes; generated when omitted.
        ignore_name_scope: True leaves name scopes out of the name.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        The received rows, in rank order. With ``splits``: the pair of these rows and an int32 tensor with the number of
        rows from each rank.

    Raises:
        ValueError: the tensor is a scalar, or ``splits`` is not a vector of integers.
        tf.errors.InvalidArgumentError: the splits do not fit the tensor or the number of ranks.
        tf.errors.FailedPreconditionError: dtype or another dimension differs between ranks.
    """
    (source,) = _dense([tensor])
    if source.shape.rank == 0:
        raise InvalidArgumentError("alltoall does not support scalar inputs: they have no rows to send.")
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
    """Reduce the ranks' tensors element by element and distribute the rows of the result, in rank order.

    Differentiable for Average and Sum.

    Args:
        tensor: shape ``(n, ...)``, the same on all ranks; not a scalar. If ``n`` is not a multiple of the number of
            ranks, the first ranks get one row more.
        device_dense: the device of the result.
        compression: a class of ``Compression``, the same on all ranks.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits.
        name: identifies the tensor across ranks, within name scopes; generated when omitted.
        process_set: the ranks that take part.
        ignore_name_scope: True leaves name scopes out of the name.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        A tensor with this rank's rows of the result.

    Raises:
        ValueError: ``op`` is not a reduction, or another argument is invalid on this rank.
        UnsupportedError: ``op`` is Adasum.
        tf.errors.UnimplementedError: the element type cannot be sent, or the reduction is not defined for it.
        tf.errors.FailedPreconditionError: shape, dtype, op, scales, compression or backend differ between ranks.
    """
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
    """Reduce several tensors as one group and distribute the rows of each result, in rank order.

    Differentiable for Average and Sum.

    Args:
        tensors: a list or tuple of tensors, each with the same shape ``(n, ...)`` on all ranks. If ``n`` is not a
            multiple of the number of ranks, the first ranks get one row more.
        device_dense: the device of the results.
        compression: a class of ``Compression``, the same on all ranks.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits.
        process_set: the ranks that take part.
        prescale_factor: multiplies every rank's tensors before the reduction.
        postscale_factor: multiplies the results.
        name: identifies the group across ranks, within name scopes; generated when omitted.
        ignore_name_scope: True leaves name scopes out of the name.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        Tensors with this rank's rows of each result, in the order of ``tensors``.

    Raises:
        ValueError, UnsupportedError, tf.errors.OpError: in the same cases as :func:`reducescatter`; also if ``tensors``
            is empty or not a list.
    """
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
    """Announce that this rank has no more data, and wait until every rank of the set has joined.

    Until then this rank takes part in the other ranks' operations without data: reductions leave it out, gathers and
    alltoall take no rows from it, and a barrier counts it as arrived. An operation whose root has joined fails on all
    ranks that called it.

    Args:
        process_set: the ranks that are to join.

    Returns:
        The rank that joined last, an int32 scalar.

    Raises:
        ValueError: the process set is not registered.
        tf.errors.InvalidArgumentError: this rank is not in the set.
    """
    return calls.run_without_tensors(Call(OP_JOIN, "", process_set))


@as_it_is
def barrier(process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Wait until every rank of the set has called this function or has joined; in a graph, when the graph runs.

    Args:
        process_set: the ranks that take part.

    Returns:
        The output of the operation, an int32 scalar without meaning.

    Raises:
        ValueError: the process set is not registered.
    """
    return calls.run_without_tensors(Call(OP_BARRIER, "", process_set))
