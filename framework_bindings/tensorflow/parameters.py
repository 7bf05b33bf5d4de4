"""Variables and objects that all ranks are to have alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horocache.tensorflow import order
from horocache.tensorflow.autograph import as_it_is
from horocache.tensorflow.functions import broadcast_

import tensorflow as tf
from horocache.collectives import object_collectives
from horocache.collectives.api import Name
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import UnsupportedError
from tensorflow.python.framework import func_graph


@as_it_is
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
    *,
    name: str | None = None,
) -> Any:
    """Overwrite every rank's variables with the root's; eagerly, as part of a function, or when a session runs it.

    Args:
        variables: of TensorFlow or Keras; the same shapes and types in the same order on all ranks.
        root_rank: whose values to take; a global rank in the set.
        process_set: the ranks that take part.
        inplace: accepted because Horovod has it; variables are always overwritten.
        name: identifies the operation across ranks.

    Returns:
        The variables. In a graph that a session runs: the operation that overwrites them all.

    Raises:
        tf.errors.FailedPreconditionError: the ranks' variables do not correspond.
    """
    overwritten = broadcast_(list(variables), root_rank, name, process_set)
    return tf.group(*overwritten) if order.runs_in_parts() else overwritten


@as_it_is
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: Name = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send one rank's object to all ranks; see :func:`horocache.broadcast_object`.

    Args:
        obj: anything that can be pickled; matters on the root alone.
        root_rank: a global rank in the set.
        session: of TensorFlow 1, accepted because Horovod has it; objects are sent at once, without it.
        name: identifies the operation across ranks.
        process_set: the ranks that take part.
    """
    _check_is_at_once()
    return object_collectives.broadcast_object(obj, root_rank, name, process_set)


@as_it_is
def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: Name = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function that is :func:`broadcast_object` with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, None, name, process_set)


@as_it_is
def allgather_object(
    obj: Any, session: Any = None, name: Name = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Send every rank's object to all ranks; see :func:`horocache.allgather_object`."""
    _check_is_at_once()
    return object_collectives.allgather_object(obj, name, process_set)


def _check_is_at_once() -> None:
    if isinstance(tf.compat.v1.get_default_graph(), func_graph.FuncGraph) and not tf.executing_eagerly():
        raise UnsupportedError(
            "objects of Python are exchanged when this is called, which is once for a function, while it is traced. "
            "Call it outside of functions."
        )
