"""For training loops: reduces gradients over the ranks, and broadcasts parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import jax
import jax.numpy as jnp
from horocache.collectives.api import Average, synchronize
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.data_parallel.bucketing import NumGroups
from horocache.data_parallel.options import gradient_options
from horocache.data_parallel.reduce_gradients import reduce_list

from .adapter import collectives
from .compression import Compression
from .functions import broadcast, call_on_host, to_jax


def reduce_gradients(
    gradients: Any,
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    num_groups: NumGroups = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce the gradients of one step over the ranks; for use between ``jax.grad`` and the optimizer's update.

    Args:
        gradients: any structure of arrays, such as ``jax.grad`` returns; the same on all ranks. The call may be inside
            ``jax.jit``. Gradients of integers, which have the type float0, are not reduced.
        compression: a class of ``Compression``, or a custom compressor; the same on all ranks.
        op: Average, Sum, Min, Max, Product or Adasum.
        num_groups: the number of groups into which the gradients are split; each group is reduced as one operation. 0
            reduces every gradient by an operation of its own. "auto": one group for each 25 MiB, at most 10.
        process_set: the ranks that take part.

    Returns:
        The reduced gradients, in the same structure.

    Raises:
        ValueError: ``compression``, ``op``, ``num_groups`` or the process set is invalid.
        UnsupportedError: the gradients are differentiated or batched.
        MismatchError: shape or dtype of a gradient, or an option, differs between ranks; names both ranks and both
            values.
    """
    options = gradient_options(
        compression=compression,
        backward_passes_per_step=1,
        op=op,
        gradient_predivide_factor=1.0,
        num_groups=num_groups,
        groups=None,
        sparse_as_dense=False,
        process_set=process_set,
        check_members=lambda _: None,
    )
    paths, structure = jax.tree_util.tree_flatten_with_path(gradients)
    # Integers have gradients of type float0, which has no values.
    places = [number for number, (_, leaf) in enumerate(paths) if not _is_float0(leaf)]
    if not places or not options.takes_part:
        return gradients
    leaves = [leaf for _, leaf in paths]
    arrays = [to_jax(leaves[number]) for number in places]
    names = [jax.tree_util.keystr(paths[number][0]) for number in places]
    variables = [_Variable(name, array.shape) for name, array in zip(names, arrays, strict=True)]

    def reduce(arrays: list[Any], prefix: str) -> list[Any]:
        return reduce_list(collectives, arrays, variables, options, f"{prefix}gradient")

    for number, each in zip(places, call_on_host("reduce_gradients", reduce, arrays, arrays), strict=True):
        leaves[number] = each
    return jax.tree.unflatten(structure, leaves)


def _is_float0(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) == jax.dtypes.float0


class _Variable(NamedTuple):
    """The variable of a gradient; ``name`` is the position of the gradient in the structure."""

    name: str
    shape: tuple[int, ...]


def broadcast_parameters(parameters: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Copy one rank's parameters, or its state of an optimizer, to all ranks.

    Args:
        parameters: any structure of arrays, numbers and keys of ``jax.random.key``; the same shapes and types on all
            ranks. Other leaves, such as functions and strings, keep each rank's own values.
        root_rank: the rank that sends its values; a global rank in the set.
        process_set: the ranks that take part.

    Returns:
        A new structure with the root's values. Each new array is on the same devices as the old one.

    Raises:
        InvalidArgumentError: ``root_rank`` is not in the process set.
        MismatchError: a shape or type differs between ranks; names both ranks and both values.
    """
    leaves, structure = jax.tree.flatten(parameters)
    results = list(leaves)
    started = []
    for number, leaf in enumerate(leaves):
        name, plain = f"parameter.{number}", jax.random.key_data(leaf) if _is_key(leaf) else leaf
        if isinstance(leaf, jax.core.Tracer):
            results[number] = _like(leaf, broadcast(plain, root_rank, name, process_set))
        elif isinstance(leaf, _VALUES):
            call = (np.asarray(plain), root_rank, name, process_set)
            started.append((number, collectives.broadcast_async(*call)))
    for number, handle in started:
        results[number] = _like(leaves[number], synchronize(handle))
    return jax.tree.unflatten(structure, results)


# The types of leaves whose values are sent.
_VALUES = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _like(leaf: Any, value: Any) -> Any:
    """Convert a received value to the kind of the leaf that it replaces."""
    if not isinstance(leaf, jax.Array):
        return value if isinstance(leaf, np.ndarray) else type(leaf)(value.item())
    if _is_key(leaf):
        value = jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.core.Tracer) or leaf.sharding == jnp.zeros(()).sharding:
        return jnp.asarray(value)
    return jax.device_put(value, leaf.sharding)
