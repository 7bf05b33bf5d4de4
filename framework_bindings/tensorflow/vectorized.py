"""Collectives in loops that TensorFlow vectorizes: tf.vectorized_map, and jacobian and batch_jacobian of tapes.

TensorFlow stacks the tensors of all iterations along a new first dimension. An operation of the loop becomes one
operation on the stacked tensors, so the ranks exchange one message for all iterations:

* Allreduce and broadcast work element by element, so they take stacked tensors unchanged.
* Allgather, alltoall and reducescatter work on rows. The dimension of the iterations is moved behind the rows, and back
  in the results: the tensors of shape [n] of L iterations are sent as one tensor of shape [n, L].
* A tensor that is the same in all iterations is sent once, and its result is the same in all iterations.
* A barrier or a join happens once.

TensorFlow also keeps the loop's body for one iteration, and runs the operations with effects in it once more, as it
does with tf.print. The ranks therefore run two operations for each operation of the loop, for any number of iterations.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horocache.errors import UnsupportedError
from tensorflow.python.ops.parallel_for.pfor import RegisterPFor, wrap

from . import library, order
from .library import operations
from .naming import renamed

_REQUEST = ("op", "reduce_op", "prescale", "postscale", "root", "process_set", "layers", "backend", "group")


def _request(op: tf.Operation) -> dict[str, Any]:
    return {name: op.get_attr(name) for name in _REQUEST}


def _rows_first(tensor: tf.Tensor) -> tf.Tensor:
    """Swap the first two dimensions. The swap is its own inverse."""
    rank = tf.rank(tensor)
    swapped = tf.transpose(tensor, tf.concat([[1, 0], tf.range(2, rank)], axis=0))
    if tensor.shape.rank is not None:
        swapped.set_shape([tensor.shape[1], tensor.shape[0], *tensor.shape[2:]])
    return swapped


def _with_rows_first(inputs: list[Any]) -> list[tf.Tensor]:
    return [_rows_first(each.t) if each.is_stacked else each.t for each in inputs]


@RegisterPFor("HorocacheSubmitInto")
def _submit_into(loop: Any) -> list[Any]:
    tensors = [each.t for each in loop.inputs]
    with order.earlier():
        handle, results = operations.horocache_submit_into(
            tensors=tensors, tensor_name=renamed(loop.op.get_attr("tensor_name")), **_request(loop.op)
        )
    order.enqueued(handle)
    stacked = [wrap(result, each.is_stacked) for result, each in zip(results, loop.inputs, strict=True)]
    return [wrap(handle, False), *stacked]


@RegisterPFor("HorocacheWait")
def _wait(loop: Any) -> list[Any]:
    handles = [loop.unstacked_input(index) for index in range(loop.op.get_attr("num_handles"))]
    inputs = loop.inputs[len(handles) :]
    results = library.wait(operations.horocache_wait, handles=handles, tensors=[each.t for each in inputs])
    for result, each in zip(results, inputs, strict=True):
        result.set_shape(each.t.shape)
    return [wrap(result, each.is_stacked) for result, each in zip(results, inputs, strict=True)]


@RegisterPFor("HorocacheSubmit")
def _submit(loop: Any) -> list[Any]:
    count = len(loop.inputs) - loop.op.get_attr("num_splits")
    if any(each.is_stacked for each in loop.inputs[count:]):
        raise UnsupportedError(
            "the splits of an alltoall differ between the iterations of a loop that TensorFlow vectorizes. Use "
            "tf.map_fn instead of tf.vectorized_map, or experimental_use_pfor=False for Jacobians."
        )
    with order.earlier():
        handle = operations.horocache_submit(
            tensors=_with_rows_first(loop.inputs[:count]),
            splits=[each.t for each in loop.inputs[count:]],
            tensor_name=renamed(loop.op.get_attr("tensor_name")),
            **_request(loop.op),
        )
    order.enqueued(handle)
    return [wrap(handle, False)]


@RegisterPFor("HorocacheWaitResults")
def _wait_results(loop: Any) -> list[Any]:
    inputs = loop.inputs[1:]
    results, rows, divisor = library.wait(
        operations.horocache_wait_results,
        handle=loop.unstacked_input(0),
        tensors=_with_rows_first(inputs),
        num_received=len(inputs),
        tensor_name=loop.op.get_attr("tensor_name"),
        **_request(loop.op),
    )
    turned = []
    for result, each, old in zip(results, inputs, loop.op.outputs, strict=False):
        if each.is_stacked:
            rest = each.t.shape[2:] if each.t.shape.rank is not None else None
            result.set_shape([None, each.t.shape[0], *rest] if rest is not None else None)
            turned.append(wrap(_rows_first(result), True))
        else:
            result.set_shape(old.shape)
            turned.append(wrap(result, False))
    return [*turned, *(wrap(each, False) for each in rows), wrap(divisor, False)]


@RegisterPFor("HorocacheWaitJoin")
def _wait_join(loop: Any) -> list[Any]:
    result = library.wait(operations.horocache_wait_join, handle=loop.unstacked_input(0))
    order.everybody_came(result)
    return [wrap(result, False)]


@RegisterPFor("HorocachePlace")
def _place(loop: Any) -> list[Any]:
    place, process_set = loop.op.get_attr("property"), loop.op.get_attr("process_set")
    return [wrap(operations.horocache_place(property=place, process_set=process_set), False)]


@RegisterPFor("HorocacheCountStep")
def _count_step(loop: Any) -> tf.Operation:
    return operations.horocache_count_step()
