"""The collectives on JAX arrays: at once, and inside of functions that JAX compiles, differentiates or batches.

What an operation does, its names and its errors are described at :class:`horocache.collectives.api.Collectives`; what is particular
to traced functions, in Note [Operations in compiled functions] and in ``docs/explanation/jax.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from horocache.jax.adapter import collectives
from horocache.jax.compression import Compression
from horocache.jax.operations import Allgather, Allreduce, Alltoall, Broadcast, OnHost, Reducescatter, place_in
from horocache.jax.primitive import Operation, apply, described

import jax
import jax.numpy as jnp
from horocache.collectives import api
from horocache.collectives.api import Average, Name
from horocache.collectives.arguments import check_list, check_scales, full_name
from horocache.collectives.reduce_op import resolve_op
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError, UnsupportedError


def to_jax(value: Any) -> jax.Array:
    """The array for what the caller passed.

    Raises:
        InvalidArgumentError: JAX takes it for no array.
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
    """``function`` of arrays, at once or when a compiled function runs: see :class:`OnHost`."""
    known = tuple(described(each.shape, each.dtype) for each in shapes)
    return apply(OnHost(what, known, function), [to_jax(array) for array in arrays])


def _run(operation: Operation, arrays: Sequence[Any]) -> list[jax.Array]:
    return apply(operation, [to_jax(array) for array in arrays])


def _where(
    kind: str, name: Name, process_set: ProcessSet, backend: str | None, *, group: bool = False
) -> dict[str, Any]:
    full_name(kind, name)  # refuses what is no name
    return {"name": name, "process_set": process_set, "backend": backend, "group": group}


def _how(compression: AnyCompressor, op: int, scales: tuple[Any, Any]) -> dict[str, Any]:
    check_scales(scales)
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
    """Reduce the ranks' arrays element by element; see :meth:`horocache.collectives.api.Collectives.allreduce`."""
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
    """:func:`allreduce` of several arrays as one."""
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
    """Copy one rank's array to all ranks; see :meth:`horocache.collectives.api.Collectives.broadcast`."""
    where = _where("broadcast", name, process_set, backend)
    return _run(Broadcast(root_rank=root_rank, **where), [tensor])[0]


def allgather(
    tensor: Any, name: Name = None, process_set: ProcessSet = global_process_set, *, backend: str | None = None
) -> jax.Array:
    """Concatenate the ranks' arrays along the first dimension; see :meth:`horocache.collectives.api.Collectives.allgather`.

    Inside of a function that JAX compiles or differentiates, the arrays of all ranks need the same number of rows.
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
    """Send a slice of rows to every rank; see :meth:`horocache.collectives.api.Collectives.alltoall`.

    Inside of a function that JAX compiles or differentiates, without ``splits``, and the arrays of all ranks need the
    same number of rows.
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
    """Reduce, and share the rows out; see :meth:`horocache.collectives.api.Collectives.reducescatter`."""
    how = _how(compression, op, (prescale_factor, postscale_factor))
    where = _where("reducescatter", name, process_set, backend)
    return _run(Reducescatter(place=place_in(process_set), **how, **where), [tensor])[0]


def barrier(process_set: ProcessSet = global_process_set, *, backend: str | None = None) -> None:
    """Return when every rank has come here; see :func:`horocache.barrier`. In a compiled function: when it runs."""

    def run(_: list[Any], __: str) -> list[Any]:
        api.barrier(process_set, backend=backend)
        return []

    call_on_host("barrier", run, [], [])


def send(tensor: Any, dst: int, tag: int = 0, *, process_set: ProcessSet = global_process_set) -> None:
    """Send an array to one rank; see :meth:`horocache.collectives.api.Collectives.send`."""

    def run(arrays: list[Any], _: str) -> list[Any]:
        collectives.send(arrays[0], dst, tag, process_set=process_set)
        return []

    call_on_host("send", run, [tensor], [])


def recv(tensor: Any, src: int, tag: int = 0, *, process_set: ProcessSet = global_process_set) -> jax.Array:
    """Receive an array from one rank; see :meth:`horocache.collectives.api.Collectives.recv`.

    Args:
        tensor: an array, or a ``jax.ShapeDtypeStruct``, of the shape and type to receive; it does not change.
        src: a global rank in the set.
        tag: matches the :func:`send` with the same tag.
        process_set: the ranks that both belong to; both sides name the same.

    Returns:
        A new array.
    """
    shape = tensor if isinstance(tensor, jax.ShapeDtypeStruct) else to_jax(tensor)

    def run(_: list[Any], __: str) -> list[Any]:
        target = np.empty(shape.shape, shape.dtype)
        return [collectives.recv(target, src, tag, process_set=process_set)]

    return call_on_host("recv", run, [], [shape])[0]
