"""horocache.keras: optimizers, callbacks and saved models, with Keras on each of its backends."""

import importlib.util

import numpy as np
import pytest

from .tensorflow_ranks import run

BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name}"))
    for name in ("tensorflow", "torch", "jax")
]


def _job(body, size, backend, *args):
    return run(body, size, args=(*args,), environment={"KERAS_BACKEND": backend}, timeout=120)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fit_equals_one_process_on_the_joint_batch(backend):
    def body():
        import horocache.keras as hvd
        import keras

        hvd.init()
        me, n = hvd.rank(), hvd.size()
        generator = np.random.default_rng(7)
        inputs, targets = (
            generator.normal(size=(48, 5)).astype("float32"),
            generator.normal(size=(48, 2)).astype("float32"),
        )

        def model(optimizer, seed):
            keras.utils.set_random_seed(seed)
            layers = [keras.layers.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)]
            made = keras.Sequential(layers)
            made.compile(optimizer, "mse")
            return made

        def sgd():
            return keras.optimizers.SGD(0.1, momentum=0.9)

        ours = model(hvd.DistributedOptimizer(sgd()), 3 + me)
        begin = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        mine = np.arange(48).reshape(-1, n, 4)[:, me].reshape(-1)  # of each joint batch of 4 n samples, 4
        ours.fit(inputs[mine], targets[mine], 4, 3, verbose=0, shuffle=False, callbacks=begin)
        alone = model(sgd(), 3)
        alone.fit(inputs, targets, 4 * n, 3, verbose=0, shuffle=False)
        for got, expected in zip(ours.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        return [weights.tobytes() for weights in ours.get_weights()]

    replicas = _job(body, 2, backend)
    assert replicas[0] == replicas[1]
