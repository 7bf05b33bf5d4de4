"""What a training loop needs: gradients of all ranks, and the same parameters everywhere."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from horocache.gradient_lists import reduce_list
from horocache.layers import AnyCompressor
from horocache.ops import Average, synchronize
from horocache.process_set import ProcessSet, global_process_set
from horocache.training import gradient_options

from .adapter import collectives
from .compression import Compression
from .functions import call_on_host, to_jax


def reduce_gradients(
    gradients: Any,
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    num_groups: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The gradients of one step, reduced over the ranks; for use between ``jax.grad`` and the optimizer's update.

    Args:
        gradients: any structure of arrays, such as ``jax.grad`` returns; inside of ``jax.jit``, too.
        compression: of ``Compression``, or one's own compressor.
        op: Average, Sum, Min, Max, Product or Adasum.
        num_groups: how many groups the gradients are reduced in, each as one operation; 0 reduces each by itself.
        process_set: the ranks that take part.

    Returns:
        The same structure.
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
    if not paths or not options.takes_part:
        return gradients
    leaves = [leaf for _, leaf in paths]
    variables = [_Variable(jax.tree_util.keystr(path), leaf.shape) for path, leaf in paths]
    reduced = call_on_host(lambda arrays: reduce_list(collectives, arrays, variables, options, "gradient"), leaves)
    return jax.tree.unflatten(structure, reduced)


class _Variable(NamedTuple):
    """Of which a gradient is: where it is in the structure."""

    name: str
    shape: tuple[int, ...]


def broadcast_parameters(parameters: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """One rank's parameters for all.

    Args:
        parameters: any structure of arrays; the same shapes and types on all ranks.
        root_rank: whose values to take; a global rank in the set.
        process_set: the ranks that take part.

    Returns:
        A new structure: JAX's arrays do not change.
    """
    leaves, structure = jax.tree.flatten(parameters)
    handles = [
        collectives.broadcast_async(to_jax(leaf), root_rank, f"parameter.{number}", process_set)
        for number, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, [jnp.asarray(synchronize(handle)) for handle in handles])
