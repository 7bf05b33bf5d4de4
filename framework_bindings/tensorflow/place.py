"""This rank's place in the job as operations. Their values come from the job in which a graph runs."""

from __future__ import annotations

import tensorflow as tf

from .autograph import as_it_is
from .library import operations

# The values of hc_property in hc.h.
_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE = range(4)


@as_it_is
def rank_op(name: str | None = None) -> tf.Tensor:
    """Return this process's rank in the job, an int32 scalar. ``name`` is the name of the TensorFlow operation."""
    return operations.horocache_place(property=_RANK, name=name)


@as_it_is
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Return this process's rank on its host, an int32 scalar. ``name`` is the name of the TensorFlow operation."""
    return operations.horocache_place(property=_LOCAL_RANK, name=name)


@as_it_is
def local_size_op(name: str | None = None) -> tf.Tensor:
    """Return the number of the job's ranks on this host, an int32 scalar.

    ``name`` is the name of the TensorFlow operation.
    """
    return operations.horocache_place(property=_LOCAL_SIZE, name=name)


@as_it_is
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return the number of ranks in a process set, an int32 scalar.

    Args:
        process_set_id: the ``process_set_id`` of a registered set; 0 stands for all ranks.
        name: the name of the TensorFlow operation.

    Raises:
        tf.errors.InvalidArgumentError: no process set has this id.
    """
    return operations.horocache_place(property=_SIZE, process_set=process_set_id, name=name)


@as_it_is
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return 1 if this rank is in a process set, else 0; an int32 scalar.

    Args:
        process_set_id: the ``process_set_id`` of a set; 0 stands for all ranks.
        name: the name of the TensorFlow operation.
    """
    if process_set_id == 0:
        return tf.ones([], tf.int32)
    own = operations.horocache_place(property=_RANK, process_set=process_set_id)
    return tf.cast(own >= 0, tf.int32, name=name)
