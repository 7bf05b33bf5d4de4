"""The order in which the kernels of a graph run.

Note [Waiting kernels and threads]: a kernel that waits for other ranks blocks one of TensorFlow's threads, and there
may be only one. If all threads of a rank are blocked, the rank submits nothing more, and ranks could wait for each
other in a circle. Two rules prevent that:

* An enqueueing kernel depends on its tensors alone.
* A waiting kernel runs after all waiting kernels that come before it in the program, and so after the enqueueing
  kernels of these. A call of a function, a loop or a branch that contains operations counts as a waiting kernel.

Of all operations that ranks are blocked in, take the one that comes first in the program. All blocked ranks have
submitted it, and the other ranks will reach it, so it completes. For example, rank 0 is blocked in operation 3 and rank
1 in operation 5: by the second rule rank 1 has submitted operation 3, too. This holds as long as only one thread of
each rank calls functions.

In functions, TensorFlow itself keeps the second rule, because it orders operations that have effects. The resolver
below declares that waiting kernels, and calls of functions that contain them, have an effect on the pseudo resource
that TensorFlow uses for effects without a resource.

A graph that a session runs in parts has no such order, because a control input would make the run of one operation run
others, too. There each waiting kernel takes a thread. If the threads of all ranks run out, the core detects that and
ends the operations.
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

# For each type of operation that calls functions, the attributes that name the functions.
_CALLEES = {
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "While": ("cond", "body"),
}
_WAITING = frozenset(("HorocacheWait", "HorocacheWaitResults", "HorocacheWaitJoin"))

# For each function, by name: True if it waits. TensorFlow's function names are unique in a process.
_functions: dict[str, bool] = {}
# For each graph that TensorFlow orders, its barriers and joins so far. Later operations run after them.
_earlier: weakref.WeakKeyDictionary[Any, list[tf.Operation]] = weakref.WeakKeyDictionary()


class _Effects:
    """Stands for a resource that an operation writes to, in TensorFlow's automatic control dependencies.

    Its id, None, is the one by which TensorFlow orders operations that have effects but no resources.

    Role: one object, immutable.
    """

    _id = None
    op = SimpleNamespace(type="")


_EFFECTS = _Effects()


@auto_control_deps.register_acd_resource_resolver
def horocache_effects(op: tf.Operation, _: Any, writes: Any) -> bool:
    """Add the effect of a waiting operation to ``writes``; returns True if ``writes`` has changed."""
    if _EFFECTS in writes or not _waits(op.type, op.get_attr):
        return False
    writes.add(_EFFECTS)
    return True


def _waits(kind: str, attribute: Any) -> bool:
    if kind in _WAITING:
        return True
    return any(_function_waits(name) for callee in _CALLEES.get(kind, ()) for name in _names(attribute(callee)))


def _names(callees: Any) -> Iterable[str]:
    """Yield the names of the functions in an attribute, which comes from an operation or from a node."""
    for callee in callees if isinstance(callees, (list, tuple)) else [callees]:
        if hasattr(callee, "list"):  # the attribute of a node
            yield from (each.name for each in (callee.list.func or [callee.func]))
        else:
            yield callee.name


def _function_waits(name: str) -> bool:
    known = _functions.get(name)
    if known is None:
        try:
            nodes = context.context().get_function_def(name).node_def
        except tf.errors.NotFoundError:
            return False  # a function of a TensorFlow 1 graph, which is not ordered
        known = _functions[name] = any(_waits(node.op, node.attr.__getitem__) for node in nodes)
    return known


def is_ordered(graph: Any) -> bool:
    """Return True if TensorFlow runs all operations of a graph that have effects, in program order."""
    return getattr(graph, "experimental_acd_manager", None) is not None


def runs_in_parts() -> bool:
    """Return True if new operations go into a graph of which a session runs only the requested parts."""
    return not tf.executing_eagerly() and not is_ordered(tf.compat.v1.get_default_graph())


def earlier() -> Any:
    """Return a context in which operations run after the barriers and joins that precede them in the program."""
    if tf.executing_eagerly():
        return tf.control_dependencies([])
    return tf.control_dependencies(_earlier.get(tf.compat.v1.get_default_graph(), []))


def enqueued(handle: tf.Tensor) -> None:
    """Let an enqueueing kernel depend on its tensors alone."""
    if tf.executing_eagerly():
        return
    if is_ordered(handle.graph):
        handle.graph.experimental_acd_manager.run_independently(handle.op)


def everybody_came(result: tf.Tensor) -> None:
    """Make operations that are enqueued later in the program run after a barrier or a join."""
    if not tf.executing_eagerly() and is_ordered(result.graph):
        _earlier.setdefault(result.graph, []).append(result.op)


def check_not_compiled(name: str | bytes) -> None:
    """Raise UnsupportedError if XLA would compile the operation, which communicates with other processes."""
    if tf.executing_eagerly():
        return
    try:
        from tensorflow.python.ops import control_flow_util  # noqa: PLC0415

        inside = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    except (ImportError, AttributeError):
        return  # this TensorFlow lacks the check; XLA itself refuses the operation
    if inside:
        raise UnsupportedError(
            f"the operation {name!r} cannot be compiled by XLA: use tf.function without jit_compile=True, and "
            "model.compile(jit_compile=False)."
        )
