"""Gradients of the operations, in eager mode and in graphs, by the formulas of :mod:`horocache.data_parallel.vjp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from horocache.base.operation_codes import OP_ALLGATHER, OP_ALLREDUCE, OP_ALLTOALL, OP_BROADCAST, OP_REDUCESCATTER
from horocache.core.process_set import registered_set
from horocache.data_parallel import vjp
from horocache.data_parallel.vjp import Call as FormulaCall
from horocache.data_parallel.vjp import Reduction

from . import calls
from .calls import Call
from .naming import name_of_gradient


class _Operations:
    """Implements :class:`horocache.data_parallel.vjp.Differentiable`.

    An operation in a graph gets its name when the operation is created.
    """

    uncompressed = ""

    def refuse(self, grads: Sequence[tf.Tensor], op: int, what: str) -> Sequence[tf.Tensor]:
        vjp.refuse(op, what)

    def allreduce(self, tensors: Sequence[tf.Tensor], how: Reduction, call: FormulaCall) -> Sequence[tf.Tensor]:
        layers, op, scales = how
        return calls.run_into(list(tensors), _call(OP_ALLREDUCE, call, reduce_op=op, scales=scales, layers=layers))

    def allgather(self, tensors: Sequence[tf.Tensor], call: FormulaCall) -> Sequence[tf.Tensor]:
        return calls.run(list(tensors), _call(OP_ALLGATHER, call)).tensors

    def alltoall_back(self, tensor: tf.Tensor, splits: tf.Tensor, rows: Any, call: FormulaCall) -> tf.Tensor:
        # All sent rows come back. alltoall() cut unsent rows off before, by a slice that has a gradient of its own.
        return calls.run([tensor], _call(OP_ALLTOALL, call), tf.cast(splits, tf.int64)).tensors[0]

    def own_rows(self, tensor: tf.Tensor, start: Any, shape: Sequence[Any]) -> tf.Tensor:
        return tensor[start : start + tf.cast(shape[0], start.dtype)]

    def zeros(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.fill(tf.shape(tensor), True), tf.zeros_like(tensor), tensor)

    def scale(self, tensor: tf.Tensor, factor: float) -> tf.Tensor:
        return tensor * tf.cast(factor, tensor.dtype)


_run = _Operations()


def _call(op: int, call: FormulaCall, **more: Any) -> Call:
    name, process_set, backend, group = call
    return Call(op, name_of_gradient(calls.KINDS[op], name), process_set, backend=backend, group=group, **more)


def _formula_call(op: Any) -> FormulaCall:
    process_set = registered_set(op.get_attr("process_set"))
    backend = op.get_attr("backend").decode()
    return FormulaCall(op.get_attr("tensor_name") or None, process_set, backend or None, op.get_attr("group"))


def _scales(op: Any) -> tuple[float, float]:
    return float.fromhex(op.get_attr("prescale").decode()), float.fromhex(op.get_attr("postscale").decode())


def _tensors(grads: Sequence[Any]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(grad) for grad in grads]


@tf.RegisterGradient("HorocacheWait")
def _of_wait(op: Any, *grads: Any) -> list[Any]:
    """Pass the gradients on: the operation returns its tensors unchanged. Handles have no gradient."""
    return [*[None] * (len(op.inputs) - len(grads)), *grads]


@tf.RegisterGradient("HorocacheSubmitInto")
def _of_enqueue_into(op: Any, _: Any, *grads: Any) -> list[tf.Tensor]:
    call = _formula_call(op)
    if op.get_attr("op") == OP_BROADCAST:
        is_root = call.process_set.included() and call.process_set.rank() == op.get_attr("root")
        return list(vjp.of_broadcast(_run, _tensors(grads), is_root, call))
    how = Reduction(op.get_attr("layers").decode(), op.get_attr("reduce_op"), _scales(op))
    return list(vjp.of_allreduce(_run, _tensors(grads), how, call))


@tf.RegisterGradient("HorocacheWaitResults")
def _of_results(op: Any, *grads: Any) -> list[Any]:
    count = (len(grads) - 1) // 2
    received = op.outputs[count : 2 * count]
    inputs = op.inputs[len(op.inputs) - count :]
    own = _of_kind(op, _tensors(grads[:count]), inputs, received)
    return [*[None] * (len(op.inputs) - count), *own]


def _of_kind(
    op: Any, grads: list[tf.Tensor], inputs: Sequence[tf.Tensor], received: Sequence[tf.Tensor]
) -> Sequence[tf.Tensor]:
    call, kind = _formula_call(op), op.get_attr("op")
    shapes = [tf.shape(tensor) for tensor in inputs]
    if kind == OP_ALLGATHER:
        rank = call.process_set.rank()
        starts = [tf.reduce_sum(tf.cast(rows[:rank], tf.int64)) for rows in received]
        return vjp.of_allgather(_run, grads, starts, shapes, call)
    if kind == OP_ALLTOALL:
        return vjp.of_alltoall(_run, grads, received, shapes, call)
    assert kind == OP_REDUCESCATTER
    ranks = call.process_set.size()
    return vjp.of_reducescatter(_run, grads, op.get_attr("reduce_op"), _scales(op), ranks, call)
