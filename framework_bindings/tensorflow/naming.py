"""The names by which ranks match operations.

Eager operations are named as in all bindings: by the user, or by the core in program order. The operations of a graph
run in any order, so each gets its name while the graph is made: the function's name, branches and loops, name scopes,
the operation's or the user's name, and a number where that is not unique in the graph.

The numbers that TensorFlow and Keras put into the names of functions, scopes and layers are left out: they count
everything that a process has made, which need not be the same on all ranks. So are the functions that a function is
called from: a rank may trace it by itself, and another one within a function.
"""

from __future__ import annotations

import re
import weakref
from typing import Any

import tensorflow as tf
from horocache.collectives.api import Name, full_name
from horocache.data_parallel.vjp import backward_name
from tensorflow.python.ops import control_flow_v2_func_graphs as func_graphs

# Traced with the function that they are in, never by themselves.
_PARTS = (func_graphs.CondBranchFuncGraph, func_graphs.WhileCondFuncGraph, func_graphs.WhileBodyFuncGraph)

# Of each graph, the names that were given in it, and how many operations asked for each.
_given: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
_paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def operation_name(kind: str, name: Name, ignore_name_scope: bool = False) -> str | bytes:
    """How the ranks call an operation; empty if the core is to name it."""
    if tf.executing_eagerly():
        return full_name(kind, name) or ""
    graph = tf.compat.v1.get_default_graph()
    own = kind if name is None else _text(full_name(kind, name))
    scope = "" if ignore_name_scope else _unnumbered(graph.get_name_scope())
    return _unique(graph, _joined(_path(graph), scope, own))


def renamed(name: str | bytes) -> str | bytes:
    """How the ranks call an operation that TensorFlow has rewritten into the default graph from one of that name."""
    return _unique(tf.compat.v1.get_default_graph(), _text(name))


def name_of_gradient(kind: str, forward: Name) -> str | bytes:
    """How the ranks call the operation of a gradient; ``forward`` is the whole name of the operation."""
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
    """The function of a graph, and the branches and loops of it that the graph is within."""
    path = _paths.get(graph)
    if path is None:
        own = _unnumbered(str(getattr(graph, "name", "")))
        if isinstance(graph, _PARTS):
            own = _unique(graph.outer_graph, _joined(_path(graph.outer_graph), own))
        path = _paths[graph] = own
    return path
