"""Compressors for TensorFlow's tensors, with Horovod's interface."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horocache.collectives.compression import CastCompressor, NoneCompressor


class _TensorFlowCast(CastCompressor):
    wide = frozenset((tf.float32, tf.float64))

    @classmethod
    def cast(cls, tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return tf.cast(tensor, dtype)


class FP16Compressor(_TensorFlowCast):
    """Sends float32 and float64 as float16; values beyond 65504 become infinite."""

    wire_name = "fp16"
    wire_dtype = tf.float16


class BF16Compressor(_TensorFlowCast):
    """Sends float32 and float64 as bfloat16: the range of float32 with 8 bits of precision."""

    wire_name = "bf16"
    wire_dtype = tf.bfloat16


class Compression:
    """The compressors, by Horovod's names."""

    none: Any = NoneCompressor
    fp16: Any = FP16Compressor
    bf16: Any = BF16Compressor
