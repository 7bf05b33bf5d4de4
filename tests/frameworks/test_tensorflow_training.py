"""Gradient tapes and Keras optimizers on TensorFlow, against one process that sees all data."""

import numpy as np
import pytest

from .tensorflow_ranks import run


def _data(ranks, steps, batch=8):
    generator = np.random.default_rng(7)
    return generator.normal(size=(steps, ranks, batch, 5)), generator.normal(size=(steps, ranks, batch, 2))


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@pytest.mark.parametrize("options", [{}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}], ids=str)
def test_a_tape_equals_one_process_on_the_joint_batch(eager, options):
    def body(eager, options, data):
        import horocache.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
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

        inputs, targets = data
        ours = train(inputs[:, me], targets[:, me], True)
        alone = train(inputs.reshape(len(inputs), -1, 5), targets.reshape(len(targets), -1, 2), False)
        for mine, reference in zip(ours, alone, strict=True):
            np.testing.assert_allclose(mine, reference, rtol=1e-9, atol=1e-12)
        return [weight.tobytes() for weight in ours]

    replicas = run(body, 3, args=(eager, options, _data(3, 4)))
    assert replicas[0] == replicas[1] == replicas[2]
