"""Gradients of the operations, in eager mode and in functions."""

import horocache.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from .tensorflow_ranks import on_tensorflow_ranks


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@on_tensorflow_ranks(3)
def test_every_operation_has_horovods_gradient(eager):
    me, n = hvd.rank(), hvd.size()

    def gradient(operation, x, weights):
        def compute(x, weights):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(operation(x) * weights)
            return tape.gradient(loss, x)

        return (compute if eager else tf.function(compute))(x, weights).numpy()

    x = tf.ones([n, 2]) * (me + 1.0)
    mine = tf.ones([n, 2]) * (me + 1.0)
    total, mean = sum(range(1, n + 1)), sum(range(1, n + 1)) / n
    assert (gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), x, mine) == total).all()
    assert (gradient(lambda x: hvd.allreduce(x, postscale_factor=2.0), x, mine) == 2 * mean).all()
    assert (gradient(lambda x: sum(hvd.grouped_allreduce([x, x], op=hvd.Sum)), x, mine) == 2 * total).all()
    assert (gradient(lambda x: hvd.broadcast(x, 1), x, mine) == (mean if me == 1 else 0)).all()
    rows = tf.ones([me + 1, 2])
    many = sum(range(1, n + 1))
    weights = tf.reshape(tf.range(2.0 * many), [many, 2]) * (me + 1.0)
    got = gradient(hvd.allgather, rows, weights)
    start = me * (me + 1) // 2
    np.testing.assert_allclose(got, np.arange(2.0 * many).reshape(many, 2)[start : start + me + 1] * mean, rtol=1e-6)
    # Row i came from rank i, and its gradient goes back there.
    np.testing.assert_array_equal(gradient(hvd.alltoall, x, mine)[:, 0], np.arange(1, n + 1))
    part = tf.ones([1, 2]) * (me + 1.0)
    np.testing.assert_array_equal(
        gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), x, part)[:, 0], n * np.arange(1, n + 1)
    )
    with pytest.raises(hvd.HorocacheError, match="gradient for Average and Sum only"):
        gradient(lambda x: hvd.allreduce(x, op=hvd.Max), x, mine)


@on_tensorflow_ranks(2)
def test_indexed_slices_are_gathered_or_made_dense():
    me = hvd.rank()
    table = tf.Variable(tf.zeros([4, 2]))

    @tf.function
    def step(as_dense):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [me, 3])) * (me + 1.0)
        return hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense).gradient(loss, table)

    slices, dense = step(False), step(True)
    assert isinstance(slices, tf.IndexedSlices)
    expected = [[0.5, 0.5], [1.0, 1.0], [0.0, 0.0], [1.5, 1.5]]
    np.testing.assert_array_equal(tf.convert_to_tensor(slices), expected)
    np.testing.assert_array_equal(dense, expected)
