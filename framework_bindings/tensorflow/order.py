"""What runs before what in a graph.

Note [Waiting kernels and threads]: kernels that wait for other ranks block a thread of TensorFlow's, of which there may
be one. So that no rank waits for an operation that another one's blocked threads keep it from submitting,

* a kernel that enqueues depends on its tensors alone;
* a kernel that waits runs after all waiting kernels before it in the program, and so after the kernels that enqueue for
  these. A call of a function, a loop or a branch with operations in it counts as a waiting kernel.

Of the operations that some ranks are blocked in, the first in the program has then been submitted by all of these; the
ranks that are not blocked will come to it. So it ends.

In functions the second rule is kept by TensorFlow itself, which orders what uses one resource: all waiting kernels take
the same one. In graphs of TensorFlow 1 they get control inputs.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from horocache.errors import UnsupportedError

_resource: list[tf.Tensor] = []
# The last waiting operation of each graph of TensorFlow 1, and what was enqueued there.
_earlier: weakref.WeakKeyDictionary[Any, list[tf.Operation]] = weakref.WeakKeyDictionary()


def _is_function(graph: Any) -> bool:
    return bool(getattr(graph, "building_function", False))


def waiting_order() -> list[tf.Tensor]:
    """What a waiting kernel takes as its first inputs."""
    if tf.executing_eagerly() or not _is_function(tf.compat.v1.get_default_graph()):
        return []
    if not _resource:
        with tf.init_scope():
            _resource.append(tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="horocache_order"))
    return _resource


def earlier() -> Any:
    """A context in which operations run after all that are in this graph, where TensorFlow does not see to that."""
    if tf.executing_eagerly():
        return tf.control_dependencies([])
    graph = tf.compat.v1.get_default_graph()
    return tf.control_dependencies([] if _is_function(graph) else _earlier.setdefault(graph, []))


def enqueued(handle: tf.Tensor) -> None:
    """Let an enqueueing kernel depend on nothing but its tensors."""
    if tf.executing_eagerly():
        return
    graph = handle.graph
    manager = getattr(graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(handle.op)
    elif not _is_function(graph):
        _earlier.setdefault(graph, []).append(handle.op)


def check_not_compiled(what: str) -> None:
    """UnsupportedError where XLA would compile the operation, which talks to other processes."""
    if tf.executing_eagerly():
        return
    try:
        from tensorflow.python.ops import control_flow_util  # noqa: PLC0415

        inside = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    except (ImportError, AttributeError):
        return  # XLA itself refuses the operation then
    if inside:
        raise UnsupportedError(
            f"{what} cannot be compiled by XLA: use tf.function without jit_compile=True, and model.compile("
            "jit_compile=False)."
        )
