"""The operations of horocache.tensorflow, in eager mode and in functions, against their definitions."""

import horocache.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from .tensorflow_ranks import on_tensorflow_ranks

DTYPES = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
DTYPES += ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@on_tensorflow_ranks(3)
def test_every_operation_on_every_dtype(eager):
    in_mode = (lambda function: function) if eager else tf.function
    me, n = hvd.rank(), hvd.size()
    for name in DTYPES:
        dtype = tf.as_dtype(name)
        x = tf.cast(tf.reshape(tf.range(6), [3, 2]) + me, dtype)
        total = sum(np.arange(6).reshape(3, 2) + r for r in range(n))
        np.testing.assert_array_equal(tf.cast(in_mode(lambda x: hvd.allreduce(x, op=hvd.Sum))(x), tf.complex64), total)
        both = in_mode(lambda x: hvd.grouped_allreduce([x, x[:1]], op=hvd.Sum))(x)
        np.testing.assert_array_equal(tf.cast(both[0], tf.complex64), total)
        np.testing.assert_array_equal(tf.cast(both[1], tf.complex64), total[:1])
        own = in_mode(lambda x: hvd.reducescatter(x, op=hvd.Sum))(x)
        rows = [3 // n + (r < 3 % n) for r in range(n)]
        start = sum(rows[:me])
        np.testing.assert_array_equal(tf.cast(own, tf.complex64), total[start : start + rows[me]])
        assert own.dtype == dtype
    for name in [*DTYPES, "bool"]:
        dtype = tf.as_dtype(name)
        x = tf.cast(tf.fill([me + 1, 2], me), dtype)
        concatenated = tf.concat([tf.cast(tf.fill([r + 1, 2], r), dtype) for r in range(n)], 0)
        gathered = in_mode(hvd.allgather)(x)
        assert bool(tf.reduce_all(gathered == concatenated)) and gathered.dtype == dtype
        first, second = in_mode(lambda x: hvd.grouped_allgather([x, x[:, :1]]))(x)
        assert bool(tf.reduce_all(first == concatenated)) and second.shape == [concatenated.shape[0], 1]
        copied = in_mode(lambda x: hvd.broadcast(x, 1))(tf.cast(tf.fill([2], me), dtype))
        assert bool(tf.reduce_all(copied == tf.cast(tf.fill([2], 1), dtype)))
        x = tf.cast(tf.range(n) + 10 * me, dtype)
        swapped = in_mode(hvd.alltoall)(x)
        assert bool(tf.reduce_all(swapped == tf.cast(me + 10 * tf.range(n), dtype)))
