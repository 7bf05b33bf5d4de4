"""Pairs of TensorFlow operations: one submits a collective and returns at once, the other waits for the result.

Arguments are checked here, by the rules of :mod:`horocache.collectives.api`, while a graph is built or an eager
operation is called. The submitting kernel checks the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from horocache.base.operation_codes import (
    OP_ALLGATHER,
    OP_ALLREDUCE,
    OP_ALLTOALL,
    OP_BROADCAST,
    OP_NAMES,
    OP_REDUCESCATTER,
)
from horocache.base.thread_names import counts_by_itself
from horocache.collectives.api import Sum, set_id
from horocache.collectives.arguments import check_backend, check_scales, full_name
from horocache.core import context
from horocache.core.process_set import ProcessSet

from . import library, order
from .library import operations

Scales = tuple[float, float]
ONE: Scales = (1.0, 1.0)
KINDS = {
    OP_ALLREDUCE: "allreduce",
    OP_ALLGATHER: "allgather",
    OP_BROADCAST: "broadcast",
    OP_ALLTOALL: "alltoall",
    OP_REDUCESCATTER: "reducescatter",
}
_SENT = frozenset(
    (
        *(tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32, tf.uint64, tf.int64, tf.bool),
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
    )
)


class Call(NamedTuple):
    """The request of an operation without its tensors: everything else that the ranks must agree on."""

    op: int
    name: str | bytes
    process_set: ProcessSet
    reduce_op: int = Sum
    scales: Scales = ONE
    root: int = -1
    layers: str = ""
    backend: str | None = None
    group: bool = False
    position: int = 0  # among the operations that the caller starts before it waits for them

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the submitting operation.

        Raises:
            InvalidArgumentError: a scale is not a number, or the process set is not registered.
        """
        check_scales(self.scales)
        before, after = self.scales
        number, name = set_id(self.process_set), self.name
        if not name and self.op in OP_NAMES and tf.executing_eagerly() and counts_by_itself():
            # Assumes that the caller waits for its unnamed operations before the thread's next call, so that only they
            # are in flight.
            own = context.current().thread_names.take(self.op, number, ()).name
            name = full_name(OP_NAMES[self.op], f"{own}.{self.position}" if self.position else own) or ""
        return {
            "op": self.op,
            "tensor_name": name,
            "process_set": number,
            "reduce_op": self.reduce_op,
            "prescale": float(before).hex(),
            "postscale": float(after).hex(),
            "root": self.root,
            "layers": self.layers,
            "backend": "" if self.backend is None else check_backend(self.backend),
            "group": self.group,
        }


class Results(NamedTuple):
    """The results of an operation whose result shapes depend on the other ranks."""

    tensors: list[tf.Tensor]
    rows: list[tf.Tensor]  # for each tensor, the number of rows from each rank
    divisor: tf.Tensor  # divides a sum over the ranks to give the average


class Enqueued(NamedTuple):
    """An operation in flight, and the tensors that will hold its results."""

    handle: tf.Tensor
    results: list[tf.Tensor]


def check_types(tensors: Sequence[Any], call: Call, labels: Sequence[str] = ()) -> None:
    """Raise tf.errors.UnimplementedError if an element type cannot be sent; ``labels`` name tensors or variables."""
    for index, tensor in enumerate(tensors):
        dtype = tf.as_dtype(tensor.dtype).base_dtype
        if dtype in _SENT:
            continue
        name = call.name.decode(errors="backslashreplace") if isinstance(call.name, bytes) else call.name
        which = labels[index] if labels else f"tensor {index}"
        cure = "Send strings by broadcast_object() or allgather_object()." if dtype == tf.string else "Cast it before."
        raise tf.errors.UnimplementedError(
            None, None, f"{name or KINDS[call.op]}, {which}: elements of type {dtype.name} cannot be sent. {cure}"
        )


def enqueue_into(tensors: Sequence[tf.Tensor], call: Call, *, wait_follows: bool = False) -> Enqueued:
    """Submit an operation whose results have the shapes of its tensors."""
    order.check_not_compiled(call.name)
    check_types(tensors, call)
    attributes = call.attributes()
    with order.earlier():
        handle, results = operations.horocache_submit_into(
            tensors=tensors, wait_follows=wait_follows and tf.executing_eagerly(), **attributes
        )
    order.enqueued(handle)
    return Enqueued(handle, results)


def wait(started: Sequence[Enqueued]) -> list[tf.Tensor]:
    """Wait for all operations; return their results in order."""
    flat = [tensor for each in started for tensor in each.results]
    handles = [each.handle for each in started]
    eager = tf.executing_eagerly()
    results = list(library.wait(operations.horocache_wait, handles=handles, tensors=flat, alone=eager))
    if not eager:
        for result, tensor in zip(results, flat, strict=True):
            result.set_shape(tensor.shape)
    return results


def run_into(tensors: Sequence[tf.Tensor], call: Call) -> list[tf.Tensor]:
    """Run an operation whose results have the shapes of its tensors."""
    return wait([enqueue_into(tensors, call, wait_follows=True)])


def run(tensors: Sequence[tf.Tensor], call: Call, splits: tf.Tensor | None = None) -> Results:
    """Run an operation whose result shapes depend on the other ranks."""
    order.check_not_compiled(call.name)
    check_types(tensors, call)
    attributes = call.attributes()
    eager = tf.executing_eagerly()
    with order.earlier():
        handle = operations.horocache_submit(
            tensors=tensors, splits=[] if splits is None else [splits], wait_follows=eager, **attributes
        )
    order.enqueued(handle)
    results, rows, divisor = library.wait(
        operations.horocache_wait_results,
        handle=handle,
        tensors=tensors,
        num_received=len(tensors),
        alone=eager,
        **attributes,
    )
    return Results(list(results), list(rows), divisor)


def run_without_tensors(call: Call) -> tf.Tensor:
    """Run a barrier or a join. Returns an int32 scalar: the rank that joined last, or -1 for a barrier."""
    order.check_not_compiled(call.name)
    eager = tf.executing_eagerly()
    # Without order.enqueued(): where TensorFlow orders operations with effects, this one keeps its program order.
    with order.earlier():
        handle = operations.horocache_submit(tensors=[], splits=[], wait_follows=eager, **call.attributes())
    result = library.wait(operations.horocache_wait_join, handle=handle, alone=eager)
    order.everybody_came(result)
    return result
