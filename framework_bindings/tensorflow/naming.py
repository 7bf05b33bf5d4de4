"""The names by which ranks match operations.

An eager operation is named as in all bindings: by the user, or by the core in program order. The operations of a graph
run in any order, so each gets its name while the graph is built. The name consists of the function's name, branches and
loops, name scopes, and the user's name or the kind of operation; a number follows if that is not unique in the graph.

A name leaves out everything that may differ between ranks:

* the numbers that TensorFlow and Keras put into the names of functions, scopes and layers, because they count all
  objects of a process;
* the callers of a function, because one rank may trace the function by itself and another rank within a caller.
"""

from __future__ import annotations

import re
import weakref
from typing import Any

import tensorflow as tf
from horocache.collectives.api import Name, full_name
from horocache.data_parallel.vjp import backward_name
from tensorflow.python.ops import control_flow_v2_func_graphs as func_graphs

# Kinds of graphs that are only traced as a part of the function that contains them.
_PARTS = (func_graphs.CondBranchFuncGraph, func_graphs.WhileCondFuncGraph, func_graphs.WhileBodyFuncGraph)

# For each graph, the names that are in use, each with the last number that was appended to it.
_given: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
_paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def operation_name(kind: str, name: Name, ignore_name_scope: bool = False) -> str | bytes:
    """Return the name by which the ranks match an operation; empty if the core is to name it."""
    if tf.executing_eagerly():
        return full_name(kind, name) or ""
    graph = tf.compat.v1.get_default_graph()
    own = kind if name is None else _text(full_name(kind, name))
    scope = "" if ignore_name_scope else _unnumbered(graph.get_name_scope())
    return _unique(graph, _joined(_path(graph), scope, own))


def renamed(name: str | bytes) -> str | bytes:
    """Return a name for an operation that TensorFlow rewrote into the default graph; ``name`` is the original's."""
    return _unique(tf.compat.v1.get_default_graph(), _text(name))


def name_of_gradient(kind: str, forward: Name) -> str | bytes:
    """Return the name of a gradient's operation; ``forward`` is the full name of the forward operation."""
    if tf.executing_eagerly():
        return backward_name(forward) or ""
    return operation_name(kind, None)


def _text(name: str | bytes | None) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+(?=[_/]|$)", "", name)


def _joined(*parts: str) -> str:
    return "/".join(filter(None, parts))


def _unique(graph: Any, name: str) -> str:
    given = _given.setdefault(graph, {})
    number = given.get(name, 0)
    unique = name
    while unique in given:
        number += 1
        unique = f"{name}_{number}"
    given[unique] = 0
    given[name] = number
    return unique


def _path(graph: Any) -> str:
    """Return the path of a graph: the function that it belongs to, then the branches and loops down to the graph."""
    path = _paths.get(graph)
    if path is None:
        own = _unnumbered(str(getattr(graph, "name", "")))
        if isinstance(graph, _PARTS):
            own = _unique(graph.outer_graph, _joined(_path(graph.outer_graph), own))
        path = _paths[graph] = own
    return path
