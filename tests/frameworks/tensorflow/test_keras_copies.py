"""Copies and files of distributed optimizers, and of models with them, are distributed in the same way or raise."""

import copy
import json
import pickle
import warnings
import zipfile

import numpy as np
import pytest

from .tensorflow_ranks import is_distributed, on_keras_ranks


@on_keras_ranks(2)
def test_copies_of_optimizers_and_models_are_distributed():
    import horocache.keras as hvd
    import keras

    me = hvd.rank()
    x, y = np.ones((4, 3), "float32") * (me + 1), np.zeros((4, 1), "float32")

    def model_with(optimizer):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer, keras.losses.MeanSquaredError())
        return model

    def by_configuration(model):
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        other.compile_from_config(model.get_compile_config())
        return other

    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(0.1),
        compression=hvd.Compression.fp16,
        op=hvd.Sum,
        backward_passes_per_step=2,
        num_groups=1,
    )
    model = model_with(optimizer)
    model.fit(x, y, 2, 1, verbose=0)
    assert type(optimizer).from_config(optimizer.get_config()).get_config() == optimizer.get_config()
    copies = [
        *(type(optimizer).from_config(optimizer.get_config()), copy.copy(optimizer), copy.deepcopy(optimizer)),
        *(pickle.loads(pickle.dumps(optimizer)), keras.optimizers.get(keras.optimizers.serialize(optimizer))),
        keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer)),
    ]
    trained = []
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), by_configuration(model)):
        copies.append(copied.optimizer)
        hvd.broadcast_variables([*copied.variables, *copied.optimizer.variables], 0)
        copied.fit(x, y, 2, 2, verbose=0)
        trained.append([weights.tobytes() for weights in copied.get_weights()])

    later = model_with("adam")
    later.optimizer = optimizer
    copies.append(by_configuration(later).optimizer)
    for each in copies:
        assert is_distributed(each) and type(each) is type(optimizer)
        assert each.debug_state() == optimizer.debug_state() and each.gradient_accumulation_steps == 2
    first, second = hvd.allgather_object(trained)
    assert first == second


@on_keras_ranks(2)
def test_saved_files_contain_the_users_optimizer(tmp_path):
    import horocache.keras as hvd
    import keras

    @keras.saving.register_keras_serializable(package="lab")
    class SignSGD(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            self.assign_sub(variable, learning_rate * keras.ops.sign(gradient))

    def saved_as(optimizer, path):
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer, keras.losses.MeanSquaredError())
        optimizer.build(model.trainable_variables)
        for file in (f"{path}.keras", f"{path}.h5"):
            model.save(file)
        with zipfile.ZipFile(f"{path}.keras") as file:
            return json.loads(file.read("config.json"))["compile_config"]["optimizer"]

    saved = {}
    for plain in (keras.optimizers.Adam(0.1), SignSGD(0.1)):
        kind = type(plain)
        path = f"{tmp_path}/{kind.__name__}{hvd.rank()}"
        saved[kind.__name__] = saved_as(hvd.DistributedOptimizer(plain, backward_passes_per_step=2), path)
        for file in (f"{path}.keras", f"{path}.h5"):
            with pytest.warns(UserWarning, match=r"is not distributed now.*hvd\.load_model"):
                loaded = keras.saving.load_model(file).optimizer
            assert type(loaded) is kind
            with warnings.catch_warnings(record=True) as warned:
                assert is_distributed(hvd.load_model(file).optimizer)
            assert not [each for each in warned if "distributed" in str(each.message)]
    plain = saved_as(keras.optimizers.Adam(0.1), f"{tmp_path}/plain{hvd.rank()}")
    for key in ("module", "class_name", "registered_name"):
        assert saved["Adam"][key] == plain[key], "the file differs from the one that Keras saves"
    assert saved["SignSGD"]["registered_name"] == "lab>SignSGD"


@on_keras_ranks(1, backends=["tensorflow"])
def test_copies_that_would_lose_options_raise():
    import horocache.keras as hvd
    import keras

    class Halved(hvd.Compression.none):
        pass

    def model_with(optimizer):
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, name="own"), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        return model

    model = model_with(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression=Halved))
    with pytest.raises(hvd.HorocacheError, match="its compression Halved is none of horocache's"):
        copy.deepcopy(model)

    model = model_with(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.optimizer.register_local_var(model.layers[0].kernel)
    copied = copy.deepcopy(model)
    assert [*copied.optimizer.debug_state().local_variables] == [id(copied.layers[0].kernel)]
    for copied_alone in (copy.copy, lambda each: keras.optimizers.get(keras.optimizers.serialize(each))):
        with pytest.raises(hvd.HorocacheError, match=r"local variables \(.*own/kernel\) cannot be copied without"):
            copied_alone(model.optimizer)

    scaled = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    for each in (copy.deepcopy(scaled), type(scaled).from_config(scaled.get_config())):
        assert type(each) is type(scaled) and type(each.inner_optimizer) is type(keras.optimizers.SGD(0.1))
