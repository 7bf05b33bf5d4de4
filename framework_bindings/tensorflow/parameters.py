"""Broadcasts variables and exchanges Python objects between the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from horocache.collectives import object_collectives
from horocache.collectives.api import Name
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import UnsupportedError
from tensorflow.python.framework import func_graph

from . import order
from .autograph import as_it_is
from .functions import broadcast_


@as_it_is
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
    *,
    name: str | None = None,
) -> Any:
    """Overwrite every rank's variables with the root's: at once, within a function, or when a session runs the result.

    Args:
        variables: TensorFlow or Keras variables; the same shapes and types in the same order on all ranks.
        root_rank: the rank that sends its values; a global rank in the set.
        process_set: the ranks that take part.
        inplace: accepted because Horovod has it, and ignored: variables are always overwritten.
        name: identifies the operation across ranks; generated when omitted.

    Returns:
        The variables. In a graph that a session runs: the operation that overwrites all of them.

    Raises:
        ValueError: ``root_rank`` is not in the process set.
        tf.errors.UnimplementedError: the element type of a variable cannot be sent; names the variable.
        tf.errors.FailedPreconditionError: number, shapes, types or order of the variables differ between ranks.
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
    """Send one rank's Python object to all ranks.

    Args:
        obj: any object that can be pickled; only the root's is used.
        root_rank: the rank that sends its object; a global rank in the set.
        session: a session of TensorFlow 1, accepted because Horovod has it, and ignored: the object is sent at once.
        name: identifies the operation across ranks; calls without a name must not overlap in time.
        process_set: the ranks that take part.

    Returns:
        The object itself on the root, a copy on the other ranks.

    Raises:
        InvalidArgumentError: the root's object cannot be pickled (on all ranks), or ``root_rank`` is not in the set.
        MismatchError: the ranks name different roots.
        UnsupportedError: called while a ``tf.function`` is traced, or the root has joined.
    """
    _check_is_at_once()
    return object_collectives.broadcast_object(obj, root_rank, name, process_set)


@as_it_is
def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: Name = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Return a function that sends one rank's Python object, its only argument, to all ranks.

    Args:
        root_rank: the rank that sends its object; a global rank in the set.
        session: a session of TensorFlow 1, accepted because Horovod has it, and ignored: the object is sent at once.
        name: identifies the operation across ranks; calls without a name must not overlap in time.
        process_set: the ranks that take part.

    Returns:
        A function that calls :func:`broadcast_object` with these arguments.
    """
    return lambda obj: broadcast_object(obj, root_rank, None, name, process_set)


@as_it_is
def allgather_object(
    obj: Any, session: Any = None, name: Name = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Send every rank's Python object to all ranks.

    Args:
        obj: any object that can be pickled.
        session: a session of TensorFlow 1, accepted because Horovod has it, and ignored: objects are sent at once.
        name: identifies the operation across ranks; calls without a name must not overlap in time.
        process_set: the ranks that take part.

    Returns:
        The objects of all ranks that have not joined, in rank order.

    Raises:
        InvalidArgumentError: a rank's object cannot be pickled; raised on all ranks, and names the first such rank.
        UnsupportedError: called while a ``tf.function`` is traced.
    """
    _check_is_at_once()
    return object_collectives.allgather_object(obj, name, process_set)


def _check_is_at_once() -> None:
    if isinstance(tf.compat.v1.get_default_graph(), func_graph.FuncGraph) and not tf.executing_eagerly():
        raise UnsupportedError(
            "objects of Python are exchanged when this is called, which is once for a function, while it is traced. "
            "Call it outside of functions."
        )
