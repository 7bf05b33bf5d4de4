"""horocache.keras: optimizers, callbacks and saved models, with Keras on each of its backends."""

import numpy as np
import pytest

from .tensorflow_ranks import is_distributed, on_keras_ranks


@on_keras_ranks(2)
def test_fit_equals_one_process_on_the_joint_batch():
    import horocache.keras as hvd
    import keras

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
    replicas = hvd.allgather_object([weights.tobytes() for weights in ours.get_weights()])
    assert replicas[0] == replicas[1]


@on_keras_ranks(2)
def test_callbacks_take_effect_and_saved_models_stay_distributed(tmp_path):
    import horocache.keras as hvd
    import keras

    me = hvd.rank()
    keras.utils.set_random_seed(me)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    plain = keras.optimizers.SGD(0.1, momentum=0.5)
    model.compile(hvd.DistributedOptimizer(plain, num_groups=1), "mse", metrics=["mae"])
    x, y = np.ones((8, 3), "float32") * (me + 1), np.zeros((8, 1), "float32")
    epochs = []

    class Note(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            epochs.append((logs["lr"], logs["loss"]))

    best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=f"{tmp_path}/best{me}.keras")
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
    loaded = hvd.load_model(f"{tmp_path}/best{me}.keras", num_groups=1)
    assert type(loaded.optimizer).__name__ == "SGD" and loaded.optimizer is not plain
    before = loaded.get_weights()[0].copy()
    loaded.fit(x, y, 2, 1, verbose=0)
    assert (loaded.get_weights()[0] != before).any()
    assert is_distributed(loaded.optimizer)
    # Keras loads the file without horocache.
    alone = keras.saving.load_model(f"{tmp_path}/best{me}.keras").optimizer
    assert type(alone) is type(plain)
    # Learning rates, averaged losses, and weights after further training
    first, second = hvd.allgather_object((epochs, [weights.tobytes() for weights in loaded.get_weights()]))
    assert first == second
    np.testing.assert_allclose([rate for rate, _ in epochs], [0.015, 0.02, 0.002], rtol=1e-5)


@on_keras_ranks(2)
def test_gradients_of_several_passes_are_summed_before_the_allreduce(backend):
    import horocache.keras as hvd
    import keras

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
    before = hvd.metrics().get("op_count.allreduce", 0)
    assert weights_after(summed, [1.0 + me, 3.0]) == -4.5
    assert weights_after(averaged, [1.0 + me, 3.0, 5.0]) == -2.25
    operations = hvd.metrics()["op_count.allreduce"] - before
    assert operations == (2 if backend != "jax" else 5)  # JAX computes both branches


@on_keras_ranks(1, backends=["tensorflow"])
def test_invalid_arguments_raise():
    import horocache.keras as hvd
    import keras

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


@on_keras_ranks(2)
def test_seed_generators_stay_local_and_results_are_backend_tensors():
    import horocache.keras as hvd
    import keras

    me = hvd.rank()
    keras.utils.set_random_seed(me)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    begin = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(np.ones((8, 3)), np.ones((8, 1)), 4, 1, verbose=0, callbacks=begin)
    value = keras.ops.convert_to_tensor(np.float32(me))
    mean, gathered = hvd.allreduce(value, name="mean"), hvd.allgather(keras.ops.reshape(value, (1,)))
    assert keras.ops.is_tensor(mean) and float(mean) == 0.5
    assert keras.ops.convert_to_numpy(gathered).tolist() == [0.0, 1.0]
    assert float(hvd.broadcast(value, 1)) == 1.0
    with pytest.raises(hvd.HorocacheError, match="legacy_opts"):
        hvd.load_model("model.keras", legacy_opts=True)
    values = [keras.ops.convert_to_numpy(variable).tobytes() for variable in model.variables]
    (first_seed, *first_rest), (second_seed, *second_rest) = hvd.allgather_object(values)
    assert first_rest == second_rest and first_seed != second_seed


@on_keras_ranks(2, backends=["tensorflow"])
def test_a_loaded_model_is_not_compiled_by_xla(tmp_path):
    import horocache.keras as hvd
    import keras

    path = f"{tmp_path}/{hvd.rank()}.keras"
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    model.fit(np.ones((4, 3)), np.ones((4, 1)), 4, 1, verbose=0)
    model.save(path)
    with pytest.warns(UserWarning, match="trained without jit_compile"):
        loaded = hvd.load_model(path)
    loaded.fit(np.ones((4, 3)), np.ones((4, 1)), 4, 1, verbose=0)
    assert loaded.jit_compile is False


@on_keras_ranks(2)
def test_codecs_are_refused():
    import horocache.keras as hvd
    import keras

    from horocache.collectives.codecs import Int8

    ones = np.ones(4, "float32")
    for call in (
        lambda: hvd.allreduce(ones, compression=Int8()),
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=Int8()),
    ):
        with pytest.raises(hvd.UnsupportedError, match=r"Compression.int8.*only allreduce of horocache and"):
            call()
    assert keras.ops.convert_to_numpy(hvd.allreduce(ones, op=hvd.Sum)).tolist() == [2] * 4
