"""The names by which ranks match operations.

Eager operations are named as in all bindings: by the user, or by the core in program order. The operations of a graph
run in any order, so each gets its name while the graph is made: the function's name, name scopes, the operation's or
the user's name, and a number where that is not unique. TensorFlow's own numbers of functions are left out: they count
everything that a process has traced, which need not be the same on all ranks.
"""

from __future__ import annotations

import re
import weakref
from typing import Any

import tensorflow as tf
from horocache.gradients import backward_name
from horocache.ops import Name, full_name

# Of each graph, the names of the functions within it, and how many were traced under each.
_inner: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
_paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def operation_name(kind: str, name: Name, ignore_name_scope: bool = False) -> str | bytes:
    """How the ranks call an operation; empty if the core is to name it."""
    if tf.executing_eagerly():
        return full_name(kind, name) or ""
    graph = tf.compat.v1.get_default_graph()
    own = kind if name is None else _text(full_name(kind, name))
    if ignore_name_scope:
        with tf.name_scope("/"):
            own = graph.unique_name(own)
    else:
        own = graph.unique_name(own)
    path = _path(graph)
    return f"{path}/{own}" if path else str(own)


def name_of_gradient(kind: str, forward: Name) -> str | bytes:
    """How the ranks call the operation of a gradient; ``forward`` is the whole name of the operation."""
    if tf.executing_eagerly():
        return backward_name(forward) or ""
    return operation_name(kind, None)


def _text(name: str | bytes | None) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)


def _path(graph: Any) -> str:
    """The functions that a graph is within, the outermost first."""
    path = _paths.get(graph)
    if path is None:
        outer = getattr(graph, "outer_graph", None)
        own = _own_name(graph, outer)
        before = "" if outer is None else _path(outer)
        path = _paths[graph] = f"{before}/{own}" if before and own else before or own
    return path


def _own_name(graph: Any, outer: Any) -> str:
    name = re.sub(r"(_\d+)+$", "", str(getattr(graph, "name", "")))
    # Functions that are traced by themselves are not counted: ranks may trace one more often than others.
    if not name or not getattr(outer, "building_function", False):
        return name
    counts = _inner.setdefault(outer, {})
    counts[name] = counts.get(name, -1) + 1
    return f"{name}_{counts[name]}" if counts[name] else name
