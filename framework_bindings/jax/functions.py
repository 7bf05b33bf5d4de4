"""The collectives on JAX arrays: at once, and inside of ``jax.jit`` by a callback to the host.

What an operation does, its names and its errors are described at :class:`horocache.ops.Collectives`. Within ``jax.jit``
the callbacks are ordered: they run in the order of the program, which must be the same on all ranks. Operations whose
results' sizes depend on other ranks are for use outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jax
import jax.numpy as jnp
from horocache.errors import InvalidArgumentError, UnsupportedError
from horocache.handles import check_list
from horocache.layers import AnyCompressor
from horocache.ops import Average, Name
from horocache.process_set import ProcessSet, global_process_set
from jax.experimental import io_callback

from .adapter import collectives
from .compression import Compression


def _traced(arrays: Sequence[Any]) -> bool:
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def to_jax(value: Any) -> jax.Array:
    """The array for what the caller passed.

    Raises:
        InvalidArgumentError: JAX takes it for no array.
    """
    try:
        return jnp.asarray(value)
    except TypeError as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise InvalidArgumentError(f"expected a jax.Array, got {kind}: {error}.") from error


def call_on_host(function: Callable[[list[Any]], Sequence[Any]], arrays: Sequence[Any]) -> list[jax.Array]:
    """``function`` of arrays, whose results have their shapes and types: at once, or when a graph runs."""
    if not _traced(arrays):
        return [jnp.asarray(each) for each in function([to_jax(array) for array in arrays])]
    shapes = [jax.eval_shape(lambda value: value, array) for array in arrays]

    def run(*values: Any) -> list[Any]:
        return [np.asarray(each) for each in function(list(values))]

    return list(io_callback(run, shapes, *arrays, ordered=True))


def _outside_only(array: Any, what: str) -> None:
    if _traced([array]):
        raise UnsupportedError(
            f"{what} cannot be inside of jax.jit: the size of its result depends on the other ranks. Call it outside."
        )


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
    """Reduce the ranks' arrays element by element; see :meth:`horocache.ops.Collectives.allreduce`."""
    call = (average, name, compression, op, prescale_factor, postscale_factor, process_set)
    return call_on_host(lambda arrays: [collectives.allreduce(arrays[0], *call, backend=backend)], [tensor])[0]


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
    call = (average, name, compression, op, prescale_factor, postscale_factor, process_set)
    return call_on_host(lambda arrays: collectives.grouped_allreduce(arrays, *call, backend=backend), list(tensors))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> jax.Array:
    """Copy one rank's array to all ranks; see :meth:`horocache.ops.Collectives.broadcast`."""
    call = (root_rank, name, process_set)
    return call_on_host(lambda arrays: [collectives.broadcast(arrays[0], *call, backend=backend)], [tensor])[0]


def allgather(
    tensor: Any, name: Name = None, process_set: ProcessSet = global_process_set, *, backend: str | None = None
) -> jax.Array:
    """Concatenate the ranks' arrays along the first dimension; see :meth:`horocache.ops.Collectives.allgather`."""
    _outside_only(tensor, "allgather")
    return jnp.asarray(collectives.allgather(to_jax(tensor), name, process_set, backend=backend))


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str | None = None,
) -> Any:
    """Send a slice of rows to every rank; see :meth:`horocache.ops.Collectives.alltoall`."""
    _outside_only(tensor, "alltoall")
    result = collectives.alltoall(to_jax(tensor), splits, name, process_set, backend=backend)
    return jnp.asarray(result) if splits is None else tuple(jnp.asarray(each) for each in result)


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
    """Reduce, and share the rows out; see :meth:`horocache.ops.Collectives.reducescatter`."""
    _outside_only(tensor, "reducescatter")
    scales = (prescale_factor, postscale_factor)
    call = (to_jax(tensor), name, compression, op, process_set, *scales)
    return jnp.asarray(collectives.reducescatter(*call, backend=backend))
