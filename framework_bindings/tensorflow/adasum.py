"""Allreduce with ``op=Adasum`` as TensorFlow operations; :mod:`horocache.collectives.adasum` has the algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from horocache.base.operation_codes import OP_ALLGATHER
from horocache.collectives.adasum import check_ranks, combine
from horocache.collectives.api import Adasum, Sum
from horocache.collectives.transforms import AnyCompressor, layer_list
from horocache.errors import UnsupportedError

from . import calls
from .calls import ONE, Call


def allreduce(tensors: Sequence[tf.Tensor], call: Call, compression: AnyCompressor | None) -> list[tf.Tensor]:
    """Return the adaptive sum over the ranks for each tensor. Differentiating a result raises UnsupportedError.

    Args:
        tensors: this rank's tensors.
        call: the allreduce: its name, process set, scales and backend.
        compression: compresses the tensors before they are sent; None sends them unchanged.

    Raises:
        UnsupportedError: the number of ranks is not a power of two, or the elements are not floating-point numbers.
    """
    check_ranks(call.process_set.size())
    for tensor in tensors:
        if not tensor.dtype.is_floating:
            raise UnsupportedError(f"Adasum works on floating-point tensors, not on {tensor.dtype.name}.")

    @tf.custom_gradient
    def reduce(*sources: tf.Tensor) -> Any:
        return _combined(sources, call, compression), _refuse

    results = reduce(*tensors)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _refuse(*_: Any) -> Any:
    raise UnsupportedError(
        f"allreduce has a gradient for Average and Sum only, not for op={Adasum}; use stop_gradient."
    )


def _combined(sources: Sequence[tf.Tensor], call: Call, compression: AnyCompressor | None) -> list[tf.Tensor]:
    layers = layer_list(compression, call.group)
    encoded, contexts = layers.encode(list(sources))
    before, after = call.scales
    token = ",".join(filter(None, [layers.signature, f"adasum={before}*{after}"]))
    gather = call._replace(op=OP_ALLGATHER, reduce_op=Sum, scales=ONE, layers=token)
    gathered = calls.run([tensor[tf.newaxis] for tensor in encoded], gather)
    ranks = call.process_set.size()
    per_tensor = [_by_rank(*each, ranks) for each in zip(gathered.tensors, gathered.rows, strict=True)]
    decoded = [layers.decode(list(parts), contexts) for parts in zip(*per_tensor, strict=True)]
    results = []
    for source, parts in zip(sources, zip(*decoded, strict=True), strict=True):
        result = combine([part * tf.cast(before, part.dtype) for part in parts], _dot, _weight)
        result = result * tf.cast(after, result.dtype)
        result.set_shape(source.shape)
        results.append(result)
    return results


def _by_rank(gathered: tf.Tensor, rows: tf.Tensor, ranks: int) -> list[tf.Tensor]:
    """Return each rank's tensor; zeros for a rank that has joined and therefore sent no row."""
    shape = tf.concat([[ranks], tf.shape(gathered)[1:]], axis=0)
    return tf.unstack(tf.scatter_nd(tf.where(rows > 0), gathered, tf.cast(shape, tf.int64)), num=ranks)


def _dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(a, tf.float64) * tf.cast(b, tf.float64))


class _Factor:
    """A float64 scalar. A product with a tensor has the tensor's type."""

    def __init__(self, value: tf.Tensor) -> None:
        self._value = value

    def __rmul__(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor * tf.cast(self._value, tensor.dtype)


def _weight(common: tf.Tensor, own: tf.Tensor) -> _Factor:
    return _Factor(1.0 - tf.math.divide_no_nan(common, 2.0 * own))
