"""Collectives on single values, for code around ``fit``: they return NumPy arrays, whatever Keras is on."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

import keras
from horocache.errors import UnsupportedError
from horocache.layers import AnyCompressor
from horocache.numpy_binding import collectives
from horocache.ops import Average, Name


def _array(value: Any) -> np.ndarray[Any, Any]:
    if keras.ops.is_tensor(value) or hasattr(value, "path"):
        return np.asarray(keras.ops.convert_to_numpy(value))
    return np.asarray(value)


def allreduce(
    value: Any,
    name: Name = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: AnyCompressor | None = None,
) -> Any:
    """Reduce the ranks' values element by element; see :meth:`horocache.ops.Collectives.allreduce`.

    Args:
        value: a tensor, a variable, an array or a number.
        name: identifies the operation across ranks.
        average: deprecated, use ``op``.
        prescale_factor: multiplies every rank's value before the reduction.
        postscale_factor: multiplies the result.
        op: Average by default.
        compression: of ``horocache.Compression``.
    """
    return collectives.allreduce(_array(value), average, name, compression, op, prescale_factor, postscale_factor)


def allgather(value: Any, name: Name = None) -> Any:
    """Concatenate the ranks' values along the first dimension; see :meth:`horocache.ops.Collectives.allgather`."""
    return collectives.allgather(_array(value), name)


def broadcast(value: Any, root_rank: int, name: Name = None) -> Any:
    """Copy one rank's value to all ranks; see :meth:`horocache.ops.Collectives.broadcast`."""
    return collectives.broadcast(_array(value), root_rank, name)


def reducescatter(value: Any, name: Name = None, op: int = Average) -> Any:
    """Reduce, and share the rows out; see :meth:`horocache.ops.Collectives.reducescatter`."""
    return collectives.reducescatter(_array(value), name, op=op)


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Horovod's function for TensorFlow 1: raises UnsupportedError, as Keras 3 has no global variables."""
    raise UnsupportedError(
        "Keras 3 has no global variables: use BroadcastGlobalVariablesCallback, or "
        f"broadcast_variables(model.variables, root_rank={root_rank})."
    )


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: AnyCompressor | None = None,
    **options: Any,
) -> Any:
    """Load a model that was saved with an optimizer, and distribute the optimizer.

    Args:
        filepath: of ``model.save``.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as for ``keras.saving.load_model``.
        compression: as for :func:`DistributedOptimizer`.
        options: more arguments of :func:`DistributedOptimizer`, as they were when the model was saved.

    Returns:
        The compiled model.
    """
    from .optimizer import DistributedOptimizer  # noqa: PLC0415

    known = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
    model = keras.saving.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model
