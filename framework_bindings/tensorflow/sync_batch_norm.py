"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras

import tensorflow as tf
from horocache.collectives.api import Sum
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError

from .functions import allreduce


@keras.saving.register_keras_serializable(package="horocache")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Normalizes each channel by mean and variance over the batches of all ranks, which may have different sizes.

    For Keras on TensorFlow. In training, all ranks must run the same layers in the same order. In inference, the layer
    equals ``keras.layers.BatchNormalization`` and needs no other rank.

    Args:
        fused: accepted because Horovod has it; must be False.
        process_set: the ranks whose batches are normalized together.
        options: arguments of ``keras.layers.BatchNormalization``; ``renorm`` is not supported.

    Raises:
        InvalidArgumentError: ``fused`` or ``renorm`` is True.
    """

    def __init__(self, fused: bool = False, process_set: ProcessSet = global_process_set, **options: Any) -> None:
        if fused:
            raise InvalidArgumentError("SyncBatchNormalization does not support fused=True.")
        if options.get("renorm"):
            raise InvalidArgumentError("SyncBatchNormalization does not support renorm=True.")
        super().__init__(**options)
        self._process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance of each channel, in float64 for float64 inputs, else in float32.

        Computed in two passes, as on one rank: in one pass, a difference of float32 sums of squares would lose the
        digits of the variance.
        """
        axes = list(self._reduction_axes)
        values = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
        weights = tf.ones_like(values[..., :1]) if mask is None else tf.cast(mask, values.dtype)[..., tf.newaxis]
        if mask is None and self.axis not in (-1, len(inputs.shape) - 1):
            weights = tf.ones_like(values)
        count = self._everybodys(tf.reduce_sum(tf.broadcast_to(weights, tf.shape(values)), axes))
        mean = tf.math.divide_no_nan(self._everybodys(tf.reduce_sum(values * weights, axes)), count)
        shape = [1] * len(inputs.shape)
        shape[self.axis] = inputs.shape[self.axis]
        squares = tf.reduce_sum(tf.square(values - tf.reshape(mean, shape)) * weights, axes)
        return mean, tf.math.divide_no_nan(self._everybodys(squares), count)

    def _everybodys(self, own: tf.Tensor) -> tf.Tensor:
        if not self._process_set.included() or self._process_set.size() == 1:
            return own
        return allreduce(own, op=Sum, process_set=self._process_set)
