"""Operations in loops that TensorFlow vectorizes: each iteration has the result of a single call."""

import horocache.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from .tensorflow_ranks import on_tensorflow_ranks


@on_tensorflow_ranks(2)
def test_vectorized_loops_equal_single_calls():
    me = hvd.rank()
    single = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]) * (me + 1.0)
    iterations = tf.stack([single, 3.0 * single, 5.0 * single])
    weight = tf.Variable([1.0, 2.0])

    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x * x)
        return hvd.DistributedGradientTape(tape).gradient(loss, [weight])[0]

    def several(x):
        return hvd.allreduce(x, op=hvd.Max), hvd.grouped_allreduce([x, single + 1.0], op=hvd.Sum), x + hvd.size()

    loops = {
        "allreduce": lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16),
        "adasum": lambda x: hvd.allreduce(x, op=hvd.Adasum),
        "several": several,
        "broadcast": lambda x: hvd.broadcast(x, 1),
        "allgather": lambda x: hvd.allgather(x[: me + 1]),
        "alltoall": lambda x: hvd.alltoall(x, splits=[1, 3]),
        "reducescatter": lambda x: hvd.reducescatter(x[:3], op=hvd.Sum),
        "the same in all iterations": lambda x: x + hvd.allgather(single[:2]),
        "rank": lambda x: x * tf.cast(hvd.rank_op(), tf.float32),
        "gradient of each": gradient,
    }

    def count():
        return sum(value for name, value in hvd.metrics().items() if name.startswith("op_count."))

    operations = {}
    for what, loop in loops.items():
        expected = [loop(x) for x in tf.unstack(iterations)]
        before = count()
        vectorized = tf.vectorized_map(loop, iterations)
        operations[what] = count() - before
        for number, each in enumerate(expected):
            for got, wanted in zip(tf.nest.flatten(vectorized), tf.nest.flatten(each), strict=True):
                np.testing.assert_allclose(got[number], wanted, rtol=1e-6, err_msg=f"{what}, iteration {number}")

    def uneven(x):
        return hvd.alltoall(x, splits=tf.cast(x[0] / (me + 1.0), tf.int32))

    with pytest.raises(hvd.HorocacheError, match="splits of an alltoall differ between the iterations"):
        tf.vectorized_map(uneven, iterations)
    assert operations.pop("several") == 2 * 2
    assert operations.pop("rank") == 0
    assert set(operations.values()) == {2}


@on_tensorflow_ranks(2)
def test_vectorized_jacobians_equal_looped_ones():
    me = hvd.rank()
    x = tf.constant([1.0, 2.0]) * (me + 1.0)

    def jacobian(operation, vectorized):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = operation(x * x)
        return tape.jacobian(y, x, experimental_use_pfor=vectorized).numpy()

    for operation in (
        hvd.allgather,
        hvd.alltoall,
        hvd.reducescatter,
        lambda y: hvd.broadcast(y, 0),
        lambda y: hvd.alltoall(y, splits=[1, 1])[0],
    ):
        np.testing.assert_allclose(jacobian(operation, True), jacobian(operation, False))

    @tf.function
    def in_function(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            first, second = hvd.allreduce(x * x), hvd.allreduce(x * x * x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                third = hvd.allreduce(x * x * x)
            slope = inner.gradient(third, x)
        return tape.jacobian(first, x), tape.jacobian(second, x), tape.jacobian(slope, x)

    batch = tf.stack([x, 10.0 * x])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(batch)
        y = hvd.allreduce(batch * batch)
    own = [me + 1.0, 2.0 * (me + 1.0)]
    diagonals = [np.diagonal(each).tolist() for each in in_function(x)]
    assert diagonals == [[2.0 * v for v in own], [3.0 * v * v for v in own], [6.0 * v for v in own]]
    of_batch = [np.diagonal(each).tolist() for each in tape.batch_jacobian(y, batch)]
    assert of_batch == [[2.0 * v for v in own], [20.0 * v for v in own]]
