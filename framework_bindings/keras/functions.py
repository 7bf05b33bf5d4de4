"""Collectives on single values, for code around ``fit``. They return tensors of Keras's backend.

If the ranks disagree, horocache raises MismatchError on torch and JAX, and ``tf.errors.FailedPreconditionError`` on
TensorFlow.
"""

from __future__ import annotations

from typing import Any, NoReturn

import keras
from horocache.collectives.api import Average, Name
from horocache.collectives.compression import refuse_codec
from horocache.collectives.transforms import AnyCompressor
from horocache.errors import UnsupportedError

from . import copies
from .backends import backend
from .optimizer import DistributedOptimizer

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
    """Reduce the ranks' values element by element; every rank gets the result.

    Args:
        value: a tensor, a variable, an array or a number, with the same shape and dtype on all ranks.
        name: identifies the operation across ranks; generated from the program order when omitted.
        average: deprecated, use ``op``.
        prescale_factor: multiplies every rank's value before the reduction.
        postscale_factor: multiplies the result.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits; for
            floating-point values also Adasum, if the number of ranks is a power of two.
        compression: a class of ``horocache.keras.Compression``, the same on all ranks; None sends values uncompressed.

    Returns:
        A tensor of the same shape and dtype, with the same bits on every rank.

    Raises:
        ValueError: ``op`` and ``average`` are both given, or an argument is invalid on this rank.
        MismatchError, tf.errors.FailedPreconditionError: shape, dtype, op, scales or compression differ between ranks;
            names both ranks and both values.
        UnsupportedError: the compression is a codec.
    """
    refuse_codec(compression)
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
    """Concatenate the ranks' values along the first dimension; every rank gets the result.

    Args:
        value: a tensor, a variable, an array or a number. The number of rows may differ between ranks and may be 0, the
            other dimensions may not differ. A number counts as one row.
        name: identifies the operation across ranks; generated from the program order when omitted.

    Returns:
        A tensor with the rows of all ranks, in rank order.

    Raises:
        MismatchError, tf.errors.FailedPreconditionError: dtype or another dimension differs between ranks; names both
            ranks and both values.
    """
    return backend().functions.allgather(_tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: Name = None) -> Any:
    """Copy one rank's value to all ranks.

    Args:
        value: a tensor, a variable, an array or a number, with the same shape and dtype on all ranks. Only the root's
            values are used.
        root_rank: the rank that sends its value.
        name: identifies the operation across ranks; generated from the program order when omitted.

    Returns:
        A tensor with the root's values.

    Raises:
        ValueError: ``root_rank`` is not a rank of the job.
        MismatchError, tf.errors.FailedPreconditionError: shape, dtype or root differ between ranks; names both ranks
            and both values.
    """
    return backend().functions.broadcast(_tensor(value), root_rank, name=name)


def reducescatter(value: Any, name: Name = None, op: int = Average) -> Any:
    """Reduce the ranks' values element by element and distribute the rows of the result, in rank order.

    Args:
        value: a tensor, a variable or an array of shape ``(n, ...)``, the same on all ranks. If ``n`` is not a multiple
            of the number of ranks, the first ranks get one row more.
        name: identifies the operation across ranks; generated from the program order when omitted.
        op: Average (the default), Sum, Min, Max or Product; for integers also And, Or and Xor of their bits.

    Returns:
        A tensor with this rank's rows of the result.

    Raises:
        ValueError: ``op`` is not a reduction.
        MismatchError, tf.errors.FailedPreconditionError: shape, dtype or op differ between ranks; names both ranks and
            both values.
    """
    return backend().functions.reducescatter(_tensor(value), name=name, op=op)


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Raise UnsupportedError: this is Horovod's function for TensorFlow 1, and Keras 3 has no global variables."""
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
        filepath: the file that ``model.save`` has written.
        custom_optimizers: the classes of optimizers that Keras does not know.
        custom_objects: a dictionary from names to custom classes or functions, for ``keras.saving.load_model``.
        compression: a class of ``Compression``, or a custom compressor, for the gradients; None for none.
        legacy_opts: accepted because Horovod has it; must be False.
        options: more arguments of :func:`DistributedOptimizer`, as they were when the model was saved.

    Returns:
        The compiled model. If it has an optimizer, that is distributed.

    Raises:
        UnsupportedError: ``legacy_opts`` is True.
        ValueError: an argument of :func:`DistributedOptimizer` is invalid.
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
