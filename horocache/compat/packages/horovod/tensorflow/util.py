"""``horovod.tensorflow.util``: helpers that programs and Horovod's tests use."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Return True if operations run at once, instead of becoming part of a graph."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    """Return a function whose operations form one graph."""
    return tf.function(function)


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cache a function's results by arguments, separately for graphs and eager mode."""
    results: dict[Any, Any] = {}

    @wraps(function)
    def cached(*args: Any, **kwargs: Any) -> Any:
        key = (args, tuple(sorted(kwargs.items())), _executing_eagerly())
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return cached


def vars_to_refs(variables: Any) -> Any:
    """Return hashable references to variables: one reference, or for a list or tuple a tuple of references."""
    if isinstance(variables, (list, tuple)):
        return tuple(vars_to_refs(each) for each in variables)
    return variables.ref()


def refs_to_vars(references: Any) -> Any:
    """Return the variables of references: one variable, or for a list or tuple a list of variables."""
    if isinstance(references, (list, tuple)):
        return [refs_to_vars(each) for each in references]
    return references.deref()
