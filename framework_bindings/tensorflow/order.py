"""What runs before what in a graph.

Note [Waiting kernels and threads]: kernels that wait for other ranks block a thread of TensorFlow's, of which there may
be one. So that no rank waits for an operation that another one's blocked threads keep it from submitting,

* a kernel that enqueues depends on its tensors alone;
* a kernel that waits runs after all waiting kernels before it in the program, and so after the kernels that enqueue for
  these. A call of a function, a loop or a branch with operations in it counts as a waiting kernel.

Of the operations that some ranks are blocked in, the first in the program has then been submitted by all of these; the
ranks that are not blocked will come to it. So it ends, as long as one thread of each rank calls functions.

In functions the second rule is kept by TensorFlow itself, which orders what has effects: it is told that waiting
kernels, and calls of functions with waiting kernels in them, have some on the place that it keeps for effects on
nothing in particular.

A graph that a session runs in parts has no such order: a control input would make a run of one operation run others,
too. There each waiting kernel takes a thread. If the threads of all ranks run out, the core sees that, and ends the
operations.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
from horocache.errors import UnsupportedError
from tensorflow.python.eager import context
from tensorflow.python.framework import auto_control_deps

# The functions that an operation calls, by its type: the names of its attributes.
_CALLEES = {
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "While": ("cond", "body"),
}
_WAITING = frozenset(("HorocacheWait", "HorocacheWaitResults", "HorocacheWaitJoin"))

# Of functions by name, whether they wait. TensorFlow gives no two functions of a process the same name.
_functions: dict[str, bool] = {}
# The barriers and joins of a graph that TensorFlow orders; later operations run after them.
_earlier: weakref.WeakKeyDictionary[Any, list[tf.Operation]] = weakref.WeakKeyDictionary()


class _Effects:
    """What TensorFlow's automatic control dependencies take for a resource that an operation writes to.

    Role: one object, immutable. Its number is the one under which TensorFlow orders operations without resources.
    """

    _id = None
    op = SimpleNamespace(type="")


_EFFECTS = _Effects()


@auto_control_deps.register_acd_resource_resolver
def horocache_effects(op: tf.Operation, _: Any, writes: Any) -> bool:
    """Tell TensorFlow that an operation waits; whether it had not been told."""
    if _EFFECTS in writes or not _waits(op.type, op.get_attr):
        return False
    writes.add(_EFFECTS)
    return True


def _waits(kind: str, attribute: Any) -> bool:
    if kind in _WAITING:
        return True
    return any(_function_waits(name) for callee in _CALLEES.get(kind, ()) for name in _names(attribute(callee)))


def _names(callees: Any) -> Iterable[str]:
    """The functions' names of an attribute, as operations or as nodes have it."""
    for callee in callees if isinstance(callees, (list, tuple)) else [callees]:
        if hasattr(callee, "list"):  # a node's
            yield from (each.name for each in (callee.list.func or [callee.func]))
        else:
            yield callee.name


def _function_waits(name: str) -> bool:
    known = _functions.get(name)
    if known is None:
        try:
            nodes = context.context().get_function_def(name).node_def
        except tf.errors.NotFoundError:
            return False  # of a graph of TensorFlow 1, which is not ordered
        known = _functions[name] = any(_waits(node.op, node.attr.__getitem__) for node in nodes)
    return known


def is_ordered(graph: Any) -> bool:
    """Whether TensorFlow runs all operations of a graph that have effects, in the order of the program."""
    return getattr(graph, "experimental_acd_manager", None) is not None


def runs_in_parts() -> bool:
    """Whether operations are added to a graph that a session runs in parts: only what is asked for, and its inputs."""
    return not tf.executing_eagerly() and not is_ordered(tf.compat.v1.get_default_graph())


def earlier() -> Any:
    """A context in which operations run after the barriers and joins before them in the program."""
    if tf.executing_eagerly():
        return tf.control_dependencies([])
    return tf.control_dependencies(_earlier.get(tf.compat.v1.get_default_graph(), []))


def enqueued(handle: tf.Tensor) -> None:
    """Let an enqueueing kernel depend on nothing but its tensors."""
    if tf.executing_eagerly():
        return
    if is_ordered(handle.graph):
        handle.graph.experimental_acd_manager.run_independently(handle.op)


def everybody_came(result: tf.Tensor) -> None:
    """Let what is enqueued later in the program run after a barrier or a join."""
    if not tf.executing_eagerly() and is_ordered(result.graph):
        _earlier.setdefault(result.graph, []).append(result.op)


def check_not_compiled(name: str | bytes) -> None:
    """UnsupportedError where XLA would compile the operation of that name, which talks to other processes."""
    if tf.executing_eagerly():
        return
    try:
        from tensorflow.python.ops import control_flow_util  # noqa: PLC0415

        inside = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    except (ImportError, AttributeError):
        return  # XLA itself refuses the operation then
    if inside:
        raise UnsupportedError(
            f"the operation {name!r} cannot be compiled by XLA: use tf.function without jit_compile=True, and "
            "model.compile(jit_compile=False)."
        )
