"""Gradient tapes on TensorFlow, against one process that sees all data; Adasum, local sources, join, counted steps."""

import horocache.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

import horocache as hc

from .tensorflow_ranks import on_tensorflow_ranks


def _data(ranks, steps, batch=8):
    generator = np.random.default_rng(7)
    return generator.normal(size=(steps, ranks, batch, 5)), generator.normal(size=(steps, ranks, batch, 2))


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize("options", [{}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}], ids=str)
@on_tensorflow_ranks(3)
def test_a_tape_equals_one_process_on_the_joint_batch(eager, options):
    me = hvd.rank()

    def train(inputs, targets, distributed):
        generator = np.random.default_rng(3)
        weights = [tf.Variable(generator.normal(size=s)) for s in ((5, 4), (4,), (4, 2), (2,))]

        def step(x, y):
            with tf.GradientTape() as tape:
                hidden = tf.tanh(x @ weights[0] + weights[1])
                loss = tf.reduce_mean(tf.square(hidden @ weights[2] + weights[3] - y))
            if distributed:
                tape = hvd.DistributedGradientTape(tape, **options)
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(0.1 * gradient)

        step = step if eager else tf.function(step)
        for x, y in zip(inputs, targets, strict=True):
            step(tf.constant(x), tf.constant(y))
        return [weight.numpy() for weight in weights]

    inputs, targets = _data(3, 4)
    ours = train(inputs[:, me], targets[:, me], True)
    alone = train(inputs.reshape(len(inputs), -1, 5), targets.reshape(len(targets), -1, 2), False)
    for mine, reference in zip(ours, alone, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-9, atol=1e-12)
    replicas = hvd.allgather_object([weight.tobytes() for weight in ours])
    assert replicas[0] == replicas[1] == replicas[2]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@on_tensorflow_ranks(2)
def test_adasum_equals_the_numpy_operation(eager):
    me = hvd.rank()
    x = np.random.default_rng(me).normal(size=(3, 2))

    def step(x):
        variable = tf.Variable if tf.executing_eagerly() else (lambda value: value)
        both = hvd.grouped_allreduce([x, x[0]], op=hvd.Adasum)
        with tf.GradientTape() as tape:
            source = variable(x)
            tape.watch(source)
            loss = tf.reduce_sum(source * source)
        tape = hvd.DistributedGradientTape(tape, op=hvd.Adasum)
        return hvd.allreduce(x, op=hvd.Adasum), *both, tape.gradient(loss, source)

    got = (step if eager else tf.function(step))(tf.constant(x))
    combine = {"op": hc.Adasum}
    whole, row = hc.allreduce(x, **combine), hc.allreduce(x[0], **combine)
    for mine, expected in zip(got, [whole, whole, row, hc.allreduce(2 * x, **combine)], strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-12)


@on_tensorflow_ranks(2)
def test_tapes_with_local_sources_groups_and_indexed_slices():
    me, n = hvd.rank(), hvd.size()
    local, shared, other = (tf.Variable([1.0, 1.0]) for _ in range(3))
    table = tf.Variable(tf.zeros([4, 2]))

    def gradients(**options):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((local + shared + other) * (me + 1.0)) + tf.reduce_sum(tf.gather(table, [me]))
        tape = hvd.DistributedGradientTape(tape, **options)
        tape.register_local_source(local)
        return tape.gradient(loss, {"local": local, "rest": [shared, table, other], "unused": tf.Variable(1.0)})

    for options in ({}, {"num_groups": 1}, {"groups": [[other, shared]]}, {"compression": hvd.Compression.bf16}):
        got = gradients(**options)
        np.testing.assert_allclose(got["local"], np.full(2, (me + 1.0) / n))
        np.testing.assert_allclose(got["rest"][0], np.full(2, 1.5))
        np.testing.assert_allclose(got["rest"][2], np.full(2, 1.5))
        np.testing.assert_allclose(tf.convert_to_tensor(got["rest"][1]), [[0.5, 0.5]] * 2 + [[0.0, 0.0]] * 2)
        assert got["unused"] is None
    np.testing.assert_allclose(gradients(scale_local_gradients=False)["local"], np.full(2, me + 1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((local + shared) * (me + 1.0))
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(local)
    ((one, of_one),), ((two, of_two),) = tape.get_local_and_global_gradients(loss, [shared, local])
    assert one is local and two is shared
    np.testing.assert_allclose(of_one, np.full(2, (me + 1.0) / n))
    np.testing.assert_allclose(of_two, np.full(2, 1.5))

    layers = keras.layers.Dense(1), keras.layers.Dense(1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layers[1](layers[0](tf.ones([1, 2]) * (me + 1.0))))
    variables = [*layers[0].trainable_variables, *layers[1].trainable_variables]
    plain = type(tape)
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=layers[0])
    assert plain is tf.GradientTape and isinstance(tape, tf.GradientTape)
    result = tape.gradient(loss, [variable.value for variable in variables])
    gathered = [hvd.allgather(each[tf.newaxis]).numpy() for each in result]
    assert (gathered[3][0] == gathered[3][1]).all() and (gathered[2][0] == gathered[2][1]).all()
    assert (gathered[0][0] != gathered[0][1]).any()
    for wrong, text in (
        ({"groups": [local]}, "lists of variables"),
        ({"groups": [[local], [local]]}, "more than once"),
        ({"num_groups": -1}, "num_groups"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedGradientTape(tf.GradientTape(), **wrong)


@on_tensorflow_ranks(2)
def test_joined_ranks_contribute_zeros():
    me = hvd.rank()
    step = tf.function(lambda x: (hvd.allreduce(x, op=hvd.Sum), hvd.allgather(x)))
    results = [[each.numpy().tolist() for each in step(tf.constant([float(me + 1)]))] for _ in range(me + 1)]
    assert results == [[[3.0], [1.0, 2.0]], [[2.0], [2.0]]][: me + 1]
    assert int(hvd.join()) == 1


@on_tensorflow_ranks(2)
def test_overlap_counts_steps_of_tapes_when_a_function_runs():
    variable = tf.Variable([1.0, 2.0])

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable * variable)
        return tape.gradient(loss, [variable])[0]

    step()
    step()
    assert hvd.overlap(reset=True).steps == 2
    compiled = tf.function(step)
    for _ in range(3):
        compiled()
    assert hvd.overlap().steps == 3
