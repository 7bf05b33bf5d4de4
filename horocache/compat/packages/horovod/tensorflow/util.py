"""``horovod.tensorflow.util``: the helpers that programs and Horovod's tests use."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Whether operations run at once, instead of becoming part of a graph."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    """A function whose operations are one graph."""
    return tf.function(function)


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is called once for the same arguments, in graphs and in eager mode each."""
    results: dict[Any, Any] = {}

    @wraps(function)
    def cached(*args: Any, **kwargs: Any) -> Any:
        key = (args, tuple(sorted(kwargs.items())), _executing_eagerly())
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return cached


def vars_to_refs(variables: Any) -> Any:
    """References to variables, which can be in a dictionary: a tuple of them for a list or a tuple."""
    if isinstance(variables, (list, tuple)):
        return tuple(vars_to_refs(each) for each in variables)
    return variables.ref()


def refs_to_vars(references: Any) -> Any:
    """The variables of references: a list of them for a list or a tuple."""
    if isinstance(references, (list, tuple)):
        return [refs_to_vars(each) for each in references]
    return references.deref()
