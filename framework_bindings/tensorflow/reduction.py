"""Reduces the gradients of one step: enqueues them one by one, the last layer's first, then waits for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from horocache.base.operation_codes import OP_ALLREDUCE
from horocache.collectives.api import Adasum
from horocache.collectives.transforms import layer_list
from horocache.core import context as _state
from horocache.data_parallel.options import Bucket, GradientOptions, buckets, members_of_lists
from horocache.data_parallel.reduce_gradients import gradient_names
from horocache.errors import UnsupportedError

from . import calls
from .calls import Call, Enqueued
from .functions import allreduce, grouped_allreduce
from .library import operations
from .naming import operation_name


def reduce_gradients(
    gradients: Sequence[Any], variables: Sequence[Any], options: GradientOptions, prefix: str
) -> list[Any]:
    """Reduce the gradients of variables over the ranks.

    Args:
        gradients: one per variable: a tensor, ``tf.IndexedSlices``, or None.
        variables: in the order of the gradients. Operations are named after them, and groups refer to them.
        options: how to reduce.
        prefix: the beginning of the operations' names.

    Returns:
        A new list with the reduced gradients; None stays None.
    """
    reduced = [
        tf.convert_to_tensor(each) if options.sparse_as_dense and _is_slices(each) else each for each in gradients
    ]
    _count_step(options)
    if not options.takes_part:
        return reduced
    # Backward passes compute the gradient of the last variable first.
    dense = [i for i in reversed(range(len(reduced))) if isinstance(reduced[i], tf.Tensor)]
    names = gradient_names(variables, prefix)
    if options.op == Adasum:
        return _adaptive(reduced, dense, options, names)
    started = [_start(bucket, reduced, names, options) for bucket in _buckets(dense, reduced, variables, options)]
    reduced = [
        _reduce_slices(each, name, options) if _is_slices(each) else each
        for each, name in zip(reduced, names, strict=True)
    ]
    _finish(started, reduced, options)
    return reduced


def _count_step(options: GradientOptions) -> None:
    """Count a step, in a graph each time that it runs.

    A graph that reduces nothing on this rank gets no such operation, so that XLA can compile it.
    """
    if tf.executing_eagerly():
        _state.count_step()
    elif options.takes_part:
        operations.horocache_count_step()


def _is_slices(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


class _Started(NamedTuple):
    """A bucket of gradients in flight, and the context that decodes them."""

    bucket: Bucket
    enqueued: Enqueued
    context: Any


def _start(bucket: Bucket, gradients: Sequence[Any], names: Sequence[str], options: GradientOptions) -> _Started:
    layers = layer_list(options.compression, False)
    encoded, context = layers.encode([gradients[i] for i in bucket.members])
    return _Started(bucket, calls.enqueue_into(encoded, _call(bucket, names, layers.signature, options)), context)


def _finish(started: Sequence[_Started], reduced: list[Any], options: GradientOptions) -> None:
    """Wait for all operations and store the results at the positions of their gradients."""
    if not started:
        return
    results = iter(calls.wait([each.enqueued for each in started]))
    for bucket, _, context in started:
        decoded = layer_list(options.compression, False).decode([next(results) for _ in bucket.members], context)
        for index, each in zip(bucket.members, decoded, strict=True):
            reduced[index] = each


def _call(bucket: Bucket, names: Sequence[str], layers: str, options: GradientOptions) -> Call:
    return Call(
        OP_ALLREDUCE,
        operation_name(*bucket.name(names)),
        options.process_set,
        options.op,
        (options.prescale, options.postscale),
        layers=layers,
        group=bucket.group,
    )


def _reduce_slices(slices: tf.IndexedSlices, name: str, options: GradientOptions) -> tf.IndexedSlices:
    return allreduce(slices, op=options.op, name=name, process_set=options.process_set)


def _adaptive(gradients: list[Any], dense: Sequence[int], options: GradientOptions, names: Sequence[str]) -> list[Any]:
    if any(map(_is_slices, gradients)):
        raise UnsupportedError("Adasum does not combine tf.IndexedSlices; use sparse_as_dense=True.")
    if dense:
        combined = grouped_allreduce(
            [gradients[i] for i in dense],
            op=Adasum,
            compression=options.compression,
            process_set=options.process_set,
            name=names[dense[0]],
        )
        for index, each in zip(dense, combined, strict=True):
            gradients[index] = each
    return gradients


def _buckets(
    dense: Sequence[int], gradients: Sequence[Any], variables: Sequence[Any], options: GradientOptions
) -> list[Bucket]:
    number_of = {variable_key(variables[i]): i for i in dense} if options.groups is not None else {}
    sizes = [_bytes(each) for each in gradients]
    dtypes = [getattr(each, "dtype", None) for each in gradients]
    return buckets(dense, sizes, dtypes, options, lambda variable: number_of.get(variable_key(variable)))


def _bytes(gradient: Any) -> int:
    """Return the size of a gradient in bytes; 0 if it is unknown before the gradient is computed."""
    if not isinstance(gradient, tf.Tensor) or not gradient.shape.is_fully_defined():
        return 0
    return int(gradient.shape.num_elements()) * int(gradient.dtype.size)


def check_lists_of_variables(groups: list[Any]) -> None:
    """Raise InvalidArgumentError unless ``groups`` are lists of variables, each variable in at most one list."""
    for _ in members_of_lists(groups, "variables", lambda each: hasattr(each, "shape"), variable_key):
        pass


def variable_key(variable: Any) -> Any:
    """Return a hashable key of a TensorFlow or Keras variable; equal keys mean the same variable."""
    value = getattr(variable, "value", None)
    if isinstance(value, tf.Variable):  # a variable of Keras
        variable = value
    return variable.ref() if hasattr(variable, "ref") else id(variable)
