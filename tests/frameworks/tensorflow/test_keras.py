"""horocache.keras: optimizers, callbacks and saved models, with Keras on each of its backends."""

import numpy as np
import pytest

from .tensorflow_ranks import BACKENDS, run_keras


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
        mine = np.arange(48).reshape(-1, n, 4)[:, me].reshape(-1)  # this rank's 4 samples of each joint batch of 4 n
        ours.fit(inputs[mine], targets[mine], 4, 3, verbose=0, shuffle=False, callbacks=begin)
        alone = model(sgd(), 3)
        alone.fit(inputs, targets, 4 * n, 3, verbose=0, shuffle=False)
        for got, expected in zip(ours.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        return [weights.tobytes() for weights in ours.get_weights()]

    replicas = run_keras(body, 2, backend)
    assert replicas[0] == replicas[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_callbacks_and_saved_models(backend, tmp_path):
    def body(folder):
        import horocache.keras as hvd
        import keras

        hvd.init()
        me = hvd.rank()
        keras.utils.set_random_seed(me)
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        plain = keras.optimizers.SGD(0.1, momentum=0.5)
        model.compile(hvd.DistributedOptimizer(plain, num_groups=1), "mse", metrics=["mae"])
        x, y = np.ones((8, 3), "float32") * (me + 1), np.zeros((8, 1), "float32")
        rates = []

        class Note(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                rates.append((logs["lr"], logs["loss"]))

        best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=f"{folder}/best{me}.keras")
        model.fit(
            x,
            y,
            2,
            3,
            verbose=0,
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
                hvd.callbacks.LearningRateWarmupCallback(0.02, 2),
                hvd.callbacks.LearningRateScheduleCallback(0.02, 0.1, start_epoch=2),
                Note(),
                best,
            ],
        )
        loaded = hvd.load_model(f"{folder}/best{me}.keras", num_groups=1)
        assert type(loaded.optimizer).__name__ == "SGD" and loaded.optimizer is not plain
        before = loaded.get_weights()[0].copy()
        loaded.fit(x, y, 2, 1, verbose=0)
        assert (loaded.get_weights()[0] != before).any()
        assert "DistributedMixin" in [base.__name__ for base in type(loaded.optimizer).__mro__]
        # The file also loads without horocache.
        alone = keras.saving.load_model(f"{folder}/best{me}.keras").optimizer
        assert type(alone) is type(plain)
        return rates, [weights.tobytes() for weights in loaded.get_weights()]

    first, second = run_keras(body, 2, backend, str(tmp_path))
    assert first == second  # rates, averaged losses, and replicas after further training
    rates = [rate for rate, _ in first[0]]
    np.testing.assert_allclose(rates, [0.015, 0.02, 0.002], rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_passes_are_added_up_before_they_are_reduced(backend):
    def body():
        import horocache.keras as hvd
        import keras

        hvd.init()
        me = hvd.rank()

        def weights_after(optimizer, gradients):
            variable = keras.Variable(np.zeros(2, "float32"))
            optimizer.build([variable])
            for gradient in gradients:
                optimizer.apply([keras.ops.convert_to_tensor(np.full(2, gradient, "float32"))], [variable])
            return float(keras.ops.convert_to_numpy(variable)[0])

        summed = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        averaged = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=True
        )
        operations = hvd.metrics().get("op_count.allreduce", 0)
        results = weights_after(summed, [1.0 + me, 3.0]), weights_after(averaged, [1.0 + me, 3.0, 5.0])
        return results, hvd.metrics()["op_count.allreduce"] - operations

    for results, operations in run_keras(body, 2, backend):
        assert results == (-4.5, -2.25)
        assert operations == (2 if backend != "jax" else 5)  # JAX computes both branches


def test_what_cannot_be_is_refused():
    def body():
        import horocache.keras as hvd
        import keras

        hvd.init()
        distributed = hvd.DistributedOptimizer(keras.optimizers.Adam())
        with pytest.raises(ValueError, match="is distributed already"):
            hvd.DistributedOptimizer(distributed)
        with pytest.raises(ValueError, match=r"keras\.optimizers\.Optimizer of Keras 3"):
            hvd.DistributedOptimizer("sgd")
        with pytest.raises(hvd.HorocacheError, match="would skip steps on some ranks only"):
            keras.optimizers.LossScaleOptimizer(distributed)
        with pytest.raises(ValueError, match="backward_passes_per_step must be a whole number"):
            hvd.DistributedOptimizer(keras.optimizers.Adam(), backward_passes_per_step=0)
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        with pytest.warns(UserWarning, match="XLA cannot compile horocache's operations"):
            model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse", jit_compile=True)
        assert not model.jit_compile
        with pytest.raises(hvd.HorocacheError, match="metric 'phase' is the string 'warm-up'"):
            hvd.callbacks.MetricAverageCallback().on_epoch_end(0, {"loss": 1.0, "phase": "warm-up"})
        with pytest.raises(hvd.HorocacheError, match="no global variables"):
            hvd.broadcast_global_variables(0)

    run_keras(body, 1, "tensorflow")


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_generators_keep_their_seeds_and_values_come_back_as_tensors(backend):
    def body():
        import horocache.keras as hvd
        import keras

        hvd.init()
        me = hvd.rank()
        keras.utils.set_random_seed(me)
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
        begin = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        model.fit(np.ones((8, 3)), np.ones((8, 1)), 4, 1, verbose=0, callbacks=begin)
        value = keras.ops.convert_to_tensor(np.float32(me))
        mean, everybody = hvd.allreduce(value, name="mean"), hvd.allgather(keras.ops.reshape(value, (1,)))
        assert keras.ops.is_tensor(mean) and float(mean) == 0.5
        assert keras.ops.convert_to_numpy(everybody).tolist() == [0.0, 1.0]
        assert float(hvd.broadcast(value, 1)) == 1.0
        with pytest.raises(hvd.HorocacheError, match="legacy_opts"):
            hvd.load_model("model.keras", legacy_opts=True)
        seed, *rest = (keras.ops.convert_to_numpy(variable).tobytes() for variable in model.variables)
        return seed, rest

    (seed, replica), (other_seed, other) = run_keras(body, 2, backend)
    assert replica == other and seed != other_seed


def test_a_loaded_model_is_not_compiled_by_xla(tmp_path):
    def body(folder):
        import horocache.keras as hvd
        import keras

        hvd.init()
        path = f"{folder}/{hvd.rank()}.keras"
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)
        model.fit(np.ones((4, 3)), np.ones((4, 1)), 4, 1, verbose=0)
        model.save(path)
        with pytest.warns(UserWarning, match="trained without jit_compile"):
            loaded = hvd.load_model(path)
        loaded.fit(np.ones((4, 3)), np.ones((4, 1)), 4, 1, verbose=0)
        return loaded.jit_compile

    assert run_keras(body, 2, "tensorflow", str(tmp_path)) == [False, False]
