"""Ranks that trace their functions differently still submit the same operations; process sets in functions."""

import threading
import time

import horocache.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from .tensorflow_ranks import on_tensorflow_ranks


@on_tensorflow_ranks(2)
def test_operation_names_contain_the_name_scopes():
    @tf.function
    def step(x):
        with tf.name_scope("outer"):
            hvd.allreduce(x, name="loss", op=hvd.Sum)
            hvd.allreduce(x, name="loss", op=hvd.Sum)
            hvd.allreduce(x, name="everywhere", ignore_name_scope=True, op=hvd.Sum)
            return hvd.allreduce(x, op=hvd.Sum)

    graph = step.get_concrete_function(tf.ones([1])).graph
    names = [node.get_attr("tensor_name").decode() for node in graph.get_operations() if "Submit" in node.type]
    total = float(step(tf.ones([1]))[0])
    scoped = [f"step/outer/allreduce.loss{number}" for number in ("", "_1")]
    assert names == [*scoped, "step/allreduce.everywhere", "step/outer/allreduce"]
    assert total == 2.0


@on_tensorflow_ranks(2)
def test_a_rank_may_trace_a_function_more_often_than_others():
    me = hvd.rank()

    @tf.function
    def mean(x):
        return hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum)

    @tf.function
    def unrelated(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x)

    # Rank 1 gets batches of other sizes and traces a function that rank 0 does not call.
    totals = []
    for size in ([4, 4, 4], [4, 3, 2])[me]:
        if me == 1:
            unrelated(tf.ones([size]))
        totals.append(float(mean(tf.ones([size]))))
    assert totals == [8.0, 7.0, 6.0]
    assert mean.experimental_get_tracing_count() == (1, 3)[me]


@on_tensorflow_ranks(2)
def test_two_models_train_in_turns():
    me = hvd.rank()

    def trainer():
        weight = tf.Variable([1.0])

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * x)
            (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
            weight.assign_sub(gradient)
            return gradient

        return step

    generator, discriminator = trainer(), trainer()
    assert [
        (float(generator(tf.constant([me + i * 1.0]))[0]), float(discriminator(tf.constant([10.0 * me]))[0]))
        for i in range(3)
    ] == [(0.5, 5.0), (1.5, 5.0), (2.5, 5.0)]


@on_tensorflow_ranks(4)
def test_operations_on_process_sets():
    me = hvd.rank()
    even, odd = hvd.add_process_set([0, 2]), hvd.add_process_set([1, 3])
    mine, others = (even, odd) if me % 2 == 0 else (odd, even)
    first, second = mine.ranks

    @tf.function
    def step(x):
        gathered = hvd.allgather(x, process_set=mine)
        rows = hvd.alltoall(tf.stack([x[0], x[0] + 100]), process_set=mine)
        return (
            hvd.allreduce(x, op=hvd.Sum, process_set=mine),
            gathered,
            hvd.broadcast(x, second, process_set=mine),
            rows,
            hvd.reducescatter(tf.stack([x, x]), op=hvd.Sum, process_set=mine),
            *hvd.grouped_allreduce([x, x], op=hvd.Sum, process_set=mine),
        )

    results = [result.numpy().reshape(-1).tolist() for result in step(tf.constant([float(me)]))]
    total, column = float(first + second), mine.ranks.index(me) * 100
    assert results == [
        [total],
        [first, second],
        [second],
        [first + column, second + column],
        [total],
        [total],
        [total],
    ]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {me} is not in process set"):
        hvd.allreduce(tf.ones([1]), process_set=others)
    with pytest.raises(ValueError, match="root"):
        hvd.broadcast(tf.ones([1]), others.ranks[0], process_set=mine)
    # A tape for a process set without this rank leaves the rank's gradient unchanged.
    x = tf.Variable([float(me + 1)])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x * x)
    (gradient,) = hvd.DistributedGradientTape(tape, process_set=even).gradient(loss, [x])
    np.testing.assert_allclose(gradient, [4.0 if me % 2 == 0 else 2.0 * (me + 1)])


@on_tensorflow_ranks(2)
def test_a_function_may_be_traced_alone_on_one_rank_and_nested_on_another():
    me = hvd.rank()

    @tf.function
    def total(x):
        return hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum)

    @tf.function
    def twice(x):
        return total(x) + total(2.0 * x)

    if me == 1:
        total.get_concrete_function(tf.ones([3]))
    alone = float(total(tf.ones([4])))
    # Rank 0 traces `total` again inside of `twice`; rank 1 has traced it already.
    assert (alone, float(twice(tf.ones([3])))) == (8.0, 18.0)


@on_tensorflow_ranks(2)
def test_keras_layer_numbers_may_differ_between_ranks():
    me = hvd.rank()
    for _ in range(me):  # rank 1 has another model, which takes the first layer numbers
        keras.Sequential([keras.layers.Input((2,)), hvd.SyncBatchNormalization(), keras.layers.Dense(1)])
    model = keras.Sequential([keras.layers.Input((2,)), hvd.SyncBatchNormalization(), keras.layers.Dense(1)])

    @tf.function
    def forward(x):
        return model(x, training=True)

    forward(tf.constant([[1.0 + me, 2.0]]))
    mean = model.layers[0].moving_mean.numpy().tolist()
    assert hvd.allgather_object(mean) == [mean, mean]
    np.testing.assert_allclose(mean, [0.015, 0.02], rtol=1e-5)


@on_tensorflow_ranks(2)
def test_each_thread_counts_its_unnamed_eager_calls_separately():
    def submitted():
        return sum(hvd.metrics()[each] for each in ("cache_hits", "cache_misses", "cache_changed"))

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) ** 2)
        return tape.gradient(total, x)

    calls = [lambda x: hvd.allreduce(x, op=hvd.Sum), hvd.allgather, lambda x: hvd.broadcast(x, 0), gradient]
    calls[0](tf.ones([1]))  # the stall check counts a thread only after its first submission
    for number, call in enumerate(calls):
        results = {}

        def work(key, value, call=call, results=results):
            results[key] = float(tf.reduce_sum(call(tf.fill([1], value))))

        # The order of the two calls differs between the ranks.
        thread, before = threading.Thread(target=work, args=("thread", 1.0)), submitted()
        if number % 2 == hvd.rank():
            thread.start()
            while submitted() == before:
                time.sleep(0.001)
        work("main", 100.0)
        if number % 2 != hvd.rank():
            thread.start()
        thread.join()
        factor = (2, 2, 1, 8)[number]
        assert results == {"thread": factor, "main": 100 * factor}, number
