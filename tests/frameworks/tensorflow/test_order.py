"""Operations in functions: blocked threads never keep a rank from submitting an operation that another rank awaits."""

import os
import time

import horocache.tensorflow as hvd
import pytest

from .tensorflow_ranks import on_tensorflow_ranks, run


@pytest.mark.parametrize("threads", [1, 2])
@on_tensorflow_ranks(3, init=False)
def test_independent_operations_end_however_few_threads_there_are(threads):
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
    assert results == [3.0, 6.0, 9.0, 6.0, 12.0, 15.0, 9.0]


def test_the_last_layers_gradient_is_on_its_way_before_the_first_layers_exists():
    """The first layer's gradient is not computed before the last layer's has been reduced."""

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

    # 3 * 2 for the first layer's gradient, plus 1 for the operation that was complete by then.
    assert run(body, 2) == [[[7.0], [2.0, 2.0, 2.0]]] * 2


@on_tensorflow_ranks(2)
def test_barriers_and_joins_stay_where_they_are_in_the_program():
    import tensorflow as tf

    me = hvd.rank()
    passed = []

    def note(what):
        tf.py_function(lambda: passed.append((what, time.monotonic())), [], [])

    @tf.function
    def meet():
        note("before")
        hvd.barrier()
        note("between")
        hvd.barrier()
        note("after")

    meet()
    passed.clear()
    time.sleep(0.5 * me)
    arrived = time.monotonic()
    meet()
    clock = {what: at for what, at in passed}
    arrivals = hvd.allgather_object(arrived)  # the ranks are on one host and share its clock
    assert clock["before"] < clock["between"] < clock["after"] and max(arrivals) < clock["between"]

    @tf.function
    def finish(x):
        total = hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(2.0 * x, op=hvd.Sum)
        last = hvd.join()
        return total, last, hvd.allreduce(x, op=hvd.Sum, name="after")

    total, last, after = [value.numpy().tolist() for value in finish(tf.constant([1.0]))]
    assert (total, after) == ([6.0], [2.0]) and last in (0, 1)


def test_gradients_of_branches_and_loops():
    def body():
        import horocache.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
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
        results = []
        for operation in (branch, loop):
            inner = tf.function(operation)

            @tf.function
            def outer(x, inner=inner, operation=operation):
                return gradient(inner, x) + gradient(operation, x)

            results.append([gradient(inner, x).numpy().tolist(), (outer(x) / 2).numpy().tolist()])
        return results

    for rank, (branch, loop) in enumerate(run(body, 2)):
        assert branch == [[4.0 * (rank + 1), 4.0]] * 2
        assert loop == [[8.0, 8.0]] * 2


def test_functions_with_operations_can_be_saved(tmp_path):
    def body(folder):
        import horocache.tensorflow as hvd
        import tensorflow as tf

        hvd.init()

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

        path = f"{folder}/{hvd.rank()}"
        trainer = Trainer()
        trainer.step(tf.constant([2.0]))
        tf.saved_model.save(trainer, path)
        loaded = tf.saved_model.load(path)
        return int(loaded.step(tf.constant([1.0]))), loaded.weight.numpy().tolist()

    assert run(body, 2, args=(str(tmp_path),)) == [(0, [-5.0]), (1, [-5.0])]


def test_functions_of_several_threads_that_may_keep_each_other_waiting_are_warned_of(tmp_path):
    """Rank 0 warns about waiting kernels after ten seconds; rank 1 submits then, or after 40 s at the latest."""
    said = tmp_path / "rank0"
    said.touch()

    def body(said):
        import threading

        import horocache.tensorflow as hvd
        import tensorflow as tf

        tf.config.threading.set_inter_op_parallelism_threads(4)
        hvd.init()
        results = {}

        def call(name):
            function = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name=name))
            results[name] = float(function(tf.ones([1]))[0])

        if hvd.rank() == 0:
            os.dup2(os.open(said, os.O_WRONLY), 2)
        until = time.monotonic() + 40
        while hvd.rank() == 1 and "threads wait" not in said.read_text() and time.monotonic() < until:
            time.sleep(0.1)
        threads = [threading.Thread(target=call, args=(name,)) for name in ("first", "second")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    outcomes = run(body, 2, args=(said,), check=False)
    assert [outcome.value for outcome in outcomes] == [{"first": 2.0, "second": 2.0}] * 2
    assert said.read_text().count("2 of TensorFlow's threads wait for other ranks") == 1, said.read_text()
    assert "TensorFlow's threads wait" not in outcomes[1].output
