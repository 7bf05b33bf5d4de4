"""Operations in functions: none keeps another rank waiting for what its own blocked threads cannot submit."""

import time

import pytest

from .tensorflow_ranks import run


@pytest.mark.parametrize("threads", [1, 2])
def test_independent_operations_end_however_few_threads_there_are(threads):
    def body(threads):
        import horocache.tensorflow as hvd
        import tensorflow as tf

        tf.config.threading.set_inter_op_parallelism_threads(threads)
        hvd.init()
        me = hvd.rank()

        @tf.function
        def inner(x):
            return hvd.allreduce(x + 1.0, op=hvd.Sum)

        @tf.function
        def outer(x):
            first, second, third = (hvd.allreduce(x * float(i), op=hvd.Sum) for i in (1, 2, 3))
            called = inner(x)
            last = hvd.allreduce(x * 4.0, op=hvd.Sum)
            chosen = tf.cond(x[0] >= 0.0, lambda: hvd.allreduce(x * 5.0, op=hvd.Sum), lambda: x)
            total = tf.zeros_like(x)
            for _ in tf.range(3):
                total += hvd.allreduce(x, op=hvd.Sum)
            return first, second, third, called, last, chosen, total

        for _ in range(20):
            results = [result.numpy()[0] for result in outer(tf.fill([5], float(me)))]
        return results

    for results in run(body, 3, args=(threads,)):
        assert results == [3.0, 6.0, 9.0, 6.0, 12.0, 15.0, 9.0]


def test_the_last_layers_gradient_is_on_its_way_before_the_first_layers_exists():
    """The first layer's is not computed before the last layer's has been reduced."""

    def body():
        import horocache.tensorflow as hvd
        import tensorflow as tf

        hvd.init()

        def wait_for_the_last():
            until = time.monotonic() + 20
            while hvd.metrics().get("op_count.allreduce", 0) == 0 and time.monotonic() < until:
                time.sleep(0.001)
            return hvd.metrics().get("op_count.allreduce", 0)

        @tf.custom_gradient
        def first_layer(x, weight):
            def gradient(upstream):
                with tf.control_dependencies([upstream]):
                    reduced = tf.py_function(wait_for_the_last, [], tf.int64)
                return None, tf.reduce_sum(upstream * x)[tf.newaxis] + tf.cast(reduced, tf.float32)

            return x * weight, gradient

        first, last = tf.Variable([1.0]), tf.Variable(tf.ones([3]))

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(first_layer(x, first) * last)
            return hvd.DistributedGradientTape(tape).gradient(loss, [first, last])

        return [gradient.numpy().tolist() for gradient in step(tf.constant(2.0))]

    # 3 * 2 of the first layer, and 1 for the operation that was over.
    assert run(body, 2) == [[[7.0], [2.0, 2.0, 2.0]]] * 2
