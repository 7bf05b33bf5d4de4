"""Collectives on single values, for code around ``fit``: they return tensors of what Keras is on."""

from __future__ import annotations

from typing import Any, NoReturn

from horocache.keras import copies
from horocache.keras.backends import backend
from horocache.keras.optimizer import DistributedOptimizer

import keras
from horocache.collectives.api import Average, Name
from horocache.collectives.transforms import AnyCompressor
from horocache.errors import UnsupportedError

_tensor = keras.ops.convert_to_tensor


def allreduce(
    value: Any,
    name: Name = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: AnyCompressor | None = None,
) -> Any:
    """Reduce the ranks' values element by element; see :meth:`horocache.collectives.api.Collectives.allreduce`.

    Args:
        value: a tensor, a variable, an array or a number.
        name: identifies the operation across ranks.
        average: deprecated, use ``op``.
        prescale_factor: multiplies every rank's value before the reduction.
        postscale_factor: multiplies the result.
        op: Average by default.
        compression: of ``horocache.keras.Compression``.
    """
    return backend().functions.allreduce(
        _tensor(value),
        average=average,
        name=name,
        compression=backend().Compression.none if compression is None else compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def allgather(value: Any, name: Name = None) -> Any:
    """Concatenate the ranks' values along the first dimension; see :meth:`horocache.collectives.api.Collectives.allgather`."""
    return backend().functions.allgather(_tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: Name = None) -> Any:
    """Copy one rank's value to all ranks; see :meth:`horocache.collectives.api.Collectives.broadcast`."""
    return backend().functions.broadcast(_tensor(value), root_rank, name=name)


def reducescatter(value: Any, name: Name = None, op: int = Average) -> Any:
    """Reduce, and share the rows out; see :meth:`horocache.collectives.api.Collectives.reducescatter`."""
    return backend().functions.reducescatter(_tensor(value), name=name, op=op)


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
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """Load a model that was saved with an optimizer, and distribute the optimizer.

    Args:
        filepath: of ``model.save``.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as for ``keras.saving.load_model``.
        compression: as for :func:`DistributedOptimizer`.
        legacy_opts: accepted because Horovod has it; must be false.
        options: more arguments of :func:`DistributedOptimizer`, as they were when the model was saved.

    Returns:
        The compiled model.
    """
    if legacy_opts:
        raise UnsupportedError("legacy_opts: optimizers of tf_keras and tf.compat.v1 are not supported.")
    known = {
        name: optimizer
        for optimizer in custom_optimizers or ()
        for name in (optimizer.__name__, keras.saving.get_registered_name(optimizer))
    }
    model = copies.load_plain(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        copies.put_into(model, DistributedOptimizer(model.optimizer, compression=compression, **options))
    return model
