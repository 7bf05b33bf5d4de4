"""The collectives on JAX arrays: run at once, or inside functions that JAX compiles, differentiates or batches.

The ranks match arrays by name. Without a name, an operation is named by the order of the calls in the program, which
must be the same on all ranks. In a compiled function, JAX wraps an error that occurs when the function runs:
``jax.errors.JaxRuntimeError`` ends with the name and message of horocache's error.

Note [Operations in compiled functions] and ``docs/explanation/jax.md`` describe operations in traced functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jax
import jax.numpy as jnp
from horocache.collectives import api
from horocache.collectives.api import Average, Name
from horocache.collectives.arguments import check_list, check_scales, full_name
from horocache.collectives.compression import refuse_codec
from horocache.collectives.reduce_op import resolve_op
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError, UnsupportedError

from .adapter import collectives
from .compression import Compression
from .operations import Allgather, Allreduce, Alltoall, Broadcast, OnHost, Reducescatter, place_in
from .primitive import Operation, apply, described


def to_jax(value: Any) -> jax.Array:
    """Convert a value to a JAX array.

    Raises:
        InvalidArgumentError: JAX cannot convert the value, or its elements are not plain numbers.
    """
    if isinstance(value, jax.Array) and isinstance(value.dtype, np.dtype):
        return value
    try:
        array = jnp.asarray(value)
    except TypeError as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise InvalidArgumentError(f"expected a jax.Array, got {kind}: {error}.") from error
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise InvalidArgumentError(f"arrays of {array.dtype} cannot be sent: send the numbers of jax.random.key_data.")
    return array


def call_on_host(
    what: str, function: Callable[[list[Any], str], Sequence[Any]], arrays: Sequence[Any], shapes: Sequence[Any]
) -> list[jax.Array]:
    """Call ``function`` on the host, at once or when a compiled function runs.

    Args:
        what: names the operation in errors.
        function: gets the arrays, and a prefix for the names of the operations that it runs; returns the results.
        arrays: the arguments.
        shapes: objects with the ``shape`` and ``dtype`` of each result.
    """
    known = tuple(described(each.shape, each.dtype) for each in shapes)
    return apply(OnHost(what, known, function), [to_jax(array) for array in arrays])


def _run(operation: Operation, arrays: Sequence[Any]) -> list[jax.Array]:
    return apply(operation, [to_jax(array) for array in arrays])


def _where(
    kind: str, name: Name, process_set: ProcessSet, backend: str | None, *, group: bool = False
) -> dict[str, Any]:
    full_name(kind, name)  # raises for an invalid name
    return {"name": name, "process_set": process_set, "backend": backend, "group": group}


def _how(compression: AnyCompressor, op: int, scales: tuple[Any, Any]) -> dict[str, Any]:
    check_scales(scales)
    refuse_codec(compression)
    return {"compression": compression, "op": op, "scales": (float(scales[0]), float(scales[1]))}


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: Name = None,
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> jax.Array:
    """Reduce the ranks' arrays element by element; every rank gets the result.

    Differentiable for Average and Sum.

    Args:
        tensor: an array with the same shape and dtype on all ranks.
        average: deprecated, use ``op``.
        name: identifies the array across ranks; generated when omitted.
        compression: a class of ``Compression``, the same on all ranks.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits; for
            floating-point arrays also Adasum, if the number of ranks is a power of two.
        prescale_factor: multiplies every rank's array before the reduction.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; all
            ranks must name the same one. None leaves the choice to the selector.

    Returns:
        An array of the same shape and dtype, with the same bits on every rank.

    Raises:
        ValueError: ``op`` and ``average`` are both given, or an argument is invalid on this rank.
        UnsupportedError: the reduction is not defined for the dtype, or the backend does not exist; the call is inside
            ``shard_map`` or ``pmap`` over several devices; or, outside compiled functions, the array is not on one CPU
            device.
        MismatchError: shape, dtype, op, scales, compression or backend differ between ranks; names both ranks and both
            values.
    """
    how = _how(compression, resolve_op(op, average), (prescale_factor, postscale_factor))
    return _run(Allreduce(**how, **_where("allreduce", name, process_set, backend)), [tensor])[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: Name = None,
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> list[jax.Array]:
    """Reduce several arrays as one group, which runs once every rank has submitted all of its arrays.

    Every array is reduced element by element, and every rank gets the results. Differentiable for Average and Sum.

    Args:
        tensors: a list or tuple of arrays; the same shapes and dtypes in the same order on all ranks.
        average: deprecated, use ``op``.
        name: identifies the group across ranks; generated when omitted.
        compression: a class of ``Compression``, the same on all ranks.
        op: Average (the default), Sum, Min, Max, Product, And, Or, Xor or Adasum, as for :func:`allreduce`.
        prescale_factor: multiplies every rank's arrays before the reduction.
        postscale_factor: multiplies the results.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        The results in the order of ``tensors``.

    Raises:
        ValueError, UnsupportedError, MismatchError: in the same cases as :func:`allreduce`; also ValueError if
            ``tensors`` is empty or not a list.
    """
    check_list(tensors, "grouped_allreduce")
    how = _how(compression, resolve_op(op, average), (prescale_factor, postscale_factor))
    return _run(Allreduce(**how, **_where("grouped_allreduce", name, process_set, backend, group=True)), tensors)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> jax.Array:
    """Copy one rank's array to all ranks.

    Differentiable: the root gets the mean of the ranks' gradients, the other ranks get zeros.

    Args:
        tensor: an array with the same shape and dtype on all ranks; only the root's values are used.
        root_rank: the rank that sends its values; a global rank in the set.
        name: identifies the array across ranks; generated when omitted.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        An array with the root's values.

    Raises:
        InvalidArgumentError: ``root_rank`` is not in the process set.
        MismatchError: shape, dtype or root differ between ranks; names both ranks and both values.
    """
    where = _where("broadcast", name, process_set, backend)
    return _run(Broadcast(root_rank=root_rank, **where), [tensor])[0]


def allgather(
    tensor: Any, name: Name = None, process_set: ProcessSet = global_process_set, *, backend: str | None = None
) -> jax.Array:
    """Concatenate the ranks' arrays along the first dimension; every rank gets the result.

    Differentiable: the gradient is averaged over the ranks, and each rank gets the gradient of its rows.

    Args:
        tensor: an array of shape ``(n_r, ...)``; ``n_r`` may differ between ranks and may be 0, the other dimensions
            may not differ. Inside a function that JAX compiles or differentiates, ``n_r`` must be the same on all
            ranks. A scalar counts as one row.
        name: identifies the array across ranks; generated when omitted.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        An array of shape ``(sum of n_r, ...)``, in rank order.

    Raises:
        MismatchError: dtype or another dimension differs between ranks; names both ranks and both values.
        InvalidArgumentError: the numbers of rows differ in a function that JAX compiles or differentiates.
    """
    where = _where("allgather", name, process_set, backend)
    return _run(Allgather(place=place_in(process_set), **where), [tensor])[0]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> Any:
    """Send a slice of rows to every rank and receive one from each.

    Differentiable without ``splits``: the rows of the gradient go back to the ranks that the rows came from.

    Args:
        tensor: an array of shape ``(n, ...)``; ``n`` may differ between ranks, the other dimensions may not. Inside a
            function that JAX compiles or differentiates, ``n`` must be the same on all ranks. Not a scalar.
        splits: one integer per rank, a sequence or an array: the number of rows for that rank, in rank order. None
            sends every rank the same number of rows; ``n`` must be a multiple of the number of ranks then. Must be None
            inside a function that JAX compiles, differentiates or batches.
        name: identifies the array across ranks; generated when omitted.
        process_set: the ranks that take part.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        An array with the received rows, in rank order; with ``splits``, the pair of it and the number of rows from each
        rank.

    Raises:
        InvalidArgumentError: the splits do not fit the array or the number of ranks; or the numbers of rows differ in a
            function that JAX compiles or differentiates.
        MismatchError: dtype or another dimension differs between ranks; names both ranks and both values.
        UnsupportedError: ``splits`` are given inside a function that JAX compiles, differentiates or batches.
    """
    array = to_jax(tensor)
    if splits is None:
        where = _where("alltoall", name, process_set, backend)
        return _run(Alltoall(place=place_in(process_set), **where), [array])[0]
    if any(isinstance(each, jax.core.Tracer) for each in (array, splits)):
        raise UnsupportedError(
            "alltoall with splits cannot be inside of a function that JAX compiles, differentiates or batches: the "
            "size of its result depends on the other ranks. Call it outside, or without splits."
        )
    output, received = collectives.alltoall(array, splits, name, process_set, backend=backend)
    return jnp.asarray(output), jnp.asarray(received)


def reducescatter(
    tensor: Any,
    name: Name = None,
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    backend: str | None = None,
) -> jax.Array:
    """Reduce the ranks' arrays element by element and distribute the rows of the result, in rank order.

    Differentiable for Average and Sum.

    Args:
        tensor: an array of shape ``(n, ...)``, the same on all ranks; not a scalar. If ``n`` is not a multiple of the
            number of ranks, the first ranks get one row more.
        name: identifies the array across ranks; generated when omitted.
        compression: a class of ``Compression``, the same on all ranks.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits.
        process_set: the ranks that take part.
        prescale_factor: multiplies every rank's array before the reduction.
        postscale_factor: multiplies the result.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.

    Returns:
        An array with this rank's rows of the result.

    Raises:
        InvalidArgumentError: the array is a scalar, or another argument is invalid on this rank.
        UnsupportedError: the reduction is not defined for the dtype, or ``op`` is Adasum.
        MismatchError: shape, dtype, op, scales, compression or backend differ between ranks; names both ranks and both
            values.
    """
    how = _how(compression, op, (prescale_factor, postscale_factor))
    where = _where("reducescatter", name, process_set, backend)
    return _run(Reducescatter(place=place_in(process_set), **how, **where), [tensor])[0]


def barrier(process_set: ProcessSet = global_process_set, *, backend: str | None = None) -> None:
    """Wait until every rank of the set has called this function or has joined; in a compiled function, when it runs.

    Args:
        process_set: the ranks that take part.
        backend: the backend that runs the operation, the same on all ranks; None leaves the choice to the selector.
    """

    def run(_: list[Any], __: str) -> list[Any]:
        api.barrier(process_set, backend=backend)
        return []

    call_on_host("barrier", run, [], [])


def send(tensor: Any, dst: int, tag: int = 0, *, process_set: ProcessSet = global_process_set) -> None:
    """Send an array to one rank.

    A message of up to 16 KiB is on its way when this function returns. A larger one waits for its :func:`recv`, so two
    ranks that both send a large message first wait for each other.

    Args:
        tensor: an array of any shape, also empty or a scalar.
        dst: the receiving rank; a global rank in the set.
        tag: 0 to 2^31 - 1; matches the :func:`recv` with the same tag.
        process_set: a set that both ranks belong to; both must name the same one.

    Raises:
        InvalidArgumentError: ``dst`` or ``tag`` is invalid.
        MismatchError: the :func:`recv` of a large message expects another dtype or number of elements.
        PeerLostError: a rank died.
        ShutDownError: ``dst`` has shut down.
        StallError: ``dst`` did not receive the message within ``stall_shutdown_time_seconds``.
    """

    def run(arrays: list[Any], _: str) -> list[Any]:
        collectives.send(arrays[0], dst, tag, process_set=process_set)
        return []

    call_on_host("send", run, [tensor], [])


def recv(tensor: Any, src: int, tag: int = 0, *, process_set: ProcessSet = global_process_set) -> jax.Array:
    """Receive an array from one rank.

    Args:
        tensor: an array, or a ``jax.ShapeDtypeStruct``, with the dtype and the number of elements that are sent. The
            result has its shape. Not modified.
        src: the sending rank; a global rank in the set.
        tag: 0 to 2^31 - 1; matches the :func:`send` with the same tag.
        process_set: a set that both ranks belong to; both must name the same one.

    Returns:
        A new array with the received values.

    Raises:
        InvalidArgumentError: ``src`` or ``tag`` is invalid.
        MismatchError: the sent array has another dtype or number of elements; names both ranks and both values.
        PeerLostError: a rank died.
        ShutDownError: ``src`` has shut down and had not sent the message.
        StallError: no message came within ``stall_shutdown_time_seconds``.
    """
    shape = tensor if isinstance(tensor, jax.ShapeDtypeStruct) else to_jax(tensor)

    def run(_: list[Any], __: str) -> list[Any]:
        target = np.empty(shape.shape, shape.dtype)
        return [collectives.recv(target, src, tag, process_set=process_set)]

    return call_on_host("recv", run, [], [shape])[0]
