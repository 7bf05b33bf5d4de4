"""Operations in functions: blocked threads never keep a rank from submitting an operation that other ranks await."""

import os
import threading
import time

import horocache.tensorflow as hvd
import pytest
import tensorflow as tf

from .tensorflow_ranks import on_tensorflow_ranks, run


@pytest.mark.parametrize("threads", [1, 2])
@on_tensorflow_ranks(3, init=False)
def test_independent_operations_complete_with_few_threads(threads):
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
    assert results == [3.0, 6.0, 9.0, 6.0, 12.0, 15.0, 9.0]


@on_tensorflow_ranks(2)
def test_the_last_layers_gradient_is_sent_before_the_first_is_computed():
    """The first layer's gradient is not computed before the last layer's has been reduced."""

    def wait_for_the_last_layers_allreduce():
        deadline = time.monotonic() + 20
        while hvd.metrics().get("op_count.allreduce", 0) == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        return hvd.metrics().get("op_count.allreduce", 0)

    @tf.custom_gradient
    def first_layer(x, weight):
        def gradient(upstream):
            with tf.control_dependencies([upstream]):
                reduced = tf.py_function(wait_for_the_last_layers_allreduce, [], tf.int64)
            return None, tf.reduce_sum(upstream * x)[tf.newaxis] + tf.cast(reduced, tf.float32)

        return x * weight, gradient

    first, last = tf.Variable([1.0]), tf.Variable(tf.ones([3]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first_layer(x, first) * last)
        return hvd.DistributedGradientTape(tape).gradient(loss, [first, last])

    gradients = [gradient.numpy().tolist() for gradient in step(tf.constant(2.0))]
    # 3 * 2 for the first layer's gradient, plus 1 for the operation that was complete by then.
    assert gradients == [[7.0], [2.0, 2.0, 2.0]]


@on_tensorflow_ranks(2)
def test_barriers_and_joins_keep_their_position_in_the_program():
    me = hvd.rank()
    passed = []

    def note(place):
        tf.py_function(lambda: passed.append((place, time.monotonic())), [], [])

    @tf.function
    def two_barriers():
        note("before")
        hvd.barrier()
        note("between")
        hvd.barrier()
        note("after")

    two_barriers()
    passed.clear()
    time.sleep(0.5 * me)
    arrived = time.monotonic()
    two_barriers()
    times = dict(passed)
    arrivals = hvd.allgather_object(arrived)  # the ranks are on one host and share its clock
    assert times["before"] < times["between"] < times["after"] and max(arrivals) < times["between"]

    @tf.function
    def finish(x):
        total = hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(2.0 * x, op=hvd.Sum)
        last = hvd.join()
        return total, last, hvd.allreduce(x, op=hvd.Sum, name="after")

    total, last, after = [value.numpy().tolist() for value in finish(tf.constant([1.0]))]
    assert (total, after) == ([6.0], [2.0]) and last in (0, 1)


@on_tensorflow_ranks(2)
def test_gradients_of_branches_and_loops():
    me = hvd.rank()
    if me == 1:  # TensorFlow's counters differ between the ranks from here on
        tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x))(tf.constant(1.0))

    def branch(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: hvd.allreduce(x * x, op=hvd.Sum), lambda: x)

    def loop(x):
        for _ in tf.range(3):
            x = hvd.allreduce(x, op=hvd.Sum)
        return x

    def gradient(operation, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(operation(x))
        return tape.gradient(y, x)

    x = tf.constant([me + 1.0, 1.0])
    for operation, expected in ((branch, [4.0 * (me + 1), 4.0]), (loop, [8.0, 8.0])):
        inner = tf.function(operation)

        @tf.function
        def outer(x, inner=inner, operation=operation):
            return gradient(inner, x) + gradient(operation, x)

        assert gradient(inner, x).numpy().tolist() == expected
        assert (outer(x) / 2).numpy().tolist() == expected


@on_tensorflow_ranks(2)
def test_functions_with_operations_can_be_saved(tmp_path):
    class Trainer(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable([1.0])

        @tf.function(input_signature=[tf.TensorSpec([1])])
        def step(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.weight * x)
            self.weight.assign_sub(hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, self.weight))
            return hvd.rank_op()

    path = f"{tmp_path}/{hvd.rank()}"
    trainer = Trainer()
    trainer.step(tf.constant([2.0]))
    tf.saved_model.save(trainer, path)
    loaded = tf.saved_model.load(path)
    assert int(loaded.step(tf.constant([1.0]))) == hvd.rank()
    assert loaded.weight.numpy().tolist() == [-5.0]


def test_threads_that_may_block_each_other_cause_a_warning(tmp_path):
    """Rank 0 warns about waiting kernels after ten seconds; rank 1 submits then, or after 40 s at the latest."""
    log = tmp_path / "rank0"
    log.touch()

    def call_on_two_threads(log):
        tf.config.threading.set_inter_op_parallelism_threads(4)
        hvd.init()
        results = {}

        def call(name):
            function = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name=name))
            results[name] = float(function(tf.ones([1]))[0])

        if hvd.rank() == 0:
            os.dup2(os.open(log, os.O_WRONLY), 2)
        deadline = time.monotonic() + 40
        while hvd.rank() == 1 and "threads wait" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        threads = [threading.Thread(target=call, args=(name,)) for name in ("first", "second")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    outcomes = run(call_on_two_threads, 2, args=(log,), check=False)
    assert [outcome.value for outcome in outcomes] == [{"first": 2.0, "second": 2.0}] * 2
    assert log.read_text().count("2 of TensorFlow's threads wait for other ranks") == 1, log.read_text()
    assert "TensorFlow's threads wait" not in outcomes[1].output
