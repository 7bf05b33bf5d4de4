"""Broadcasts of variables and objects, synchronized batch normalization, and ``rank_op`` in graphs."""

import threading

import horocache.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from .tensorflow_ranks import on_tensorflow_ranks


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
@on_tensorflow_ranks(2)
def test_variables_of_all_dtypes_are_broadcast_from_the_root(eager):
    me = hvd.rank()
    variables = [
        tf.Variable(tf.cast(tf.fill(shape, me + number), dtype))
        for number, (shape, dtype) in enumerate(
            [([2, 3], tf.float32), ([], tf.int64), ([4], tf.float32), ([0], tf.float16), ([2], tf.bool)]
        )
    ]
    variables.append(keras.Variable(np.full(3, me, "float64")))

    def copy():
        return hvd.broadcast_variables(variables, root_rank=1)

    # A function returns tensors; an eager call returns the variables themselves.
    returned = copy() if eager else tf.function(copy)()
    assert len(returned) == len(variables)
    assert [float(tf.reduce_max(tf.cast(v, tf.float32))) if v.shape != (0,) else None for v in variables] == [
        1.0,
        2.0,
        3.0,
        None,
        1.0,
        1.0,
    ]
    assert hvd.broadcast_variables([], root_rank=0) == []
    with pytest.raises(hvd.HorocacheError, match="needs a list of variables"):
        hvd.broadcast_(variables[0], root_rank=0)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"shape"):
        hvd.broadcast_variables([tf.Variable(tf.zeros([me + 1]))], root_rank=0, name="others")


@on_tensorflow_ranks(2)
def test_a_thread_broadcasts_variables_of_two_types_without_a_name():
    variables = [tf.Variable([1.0 + hvd.rank()]), tf.Variable(5 + hvd.rank())]
    thread = threading.Thread(target=hvd.broadcast_, args=(variables, 1), name="loader")
    thread.start()
    thread.join()
    assert [variable.numpy().tolist() for variable in variables] == [[2.0], 6]


@on_tensorflow_ranks(3)
def test_objects_are_broadcast_and_gathered():
    me = hvd.rank()
    assert hvd.broadcast_object({"epoch": 10 + me}, root_rank=1) == {"epoch": 11}
    assert hvd.broadcast_object_fn(root_rank=0, name="state")(me) == 0
    assert hvd.allgather_object(["x"] * me) == [[], ["x"], ["x", "x"]]
    with pytest.raises(hvd.HorocacheError, match="Call it outside of functions"):
        tf.function(lambda: hvd.broadcast_object(1))()


@pytest.mark.parametrize(("shape", "axis"), [((6, 3), -1), ((6, 2, 2, 3), -1), ((6, 3, 4), 1)], ids=str)
@on_tensorflow_ranks(2)
def test_synchronized_batch_normalization_equals_the_joint_batch(shape, axis):
    me = hvd.rank()
    values = np.random.default_rng(3).normal(100.0, 3.0, shape)
    weights = np.random.default_rng(4).normal(size=shape)
    rows = [slice(0, 1), slice(1, 6)][me]  # batches of different sizes

    def results_of(layer, x, weights):
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = layer(x, training=True)
            loss = tf.reduce_sum(result * weights)
        gradients = tape.gradient(loss, [x, *layer.trainable_variables])
        return [result, *gradients, *layer.non_trainable_variables, layer(x, training=False)]

    options = {"axis": axis, "dtype": "float64", "momentum": 0.5}
    ours = results_of(hvd.SyncBatchNormalization(**options), values[rows], weights[rows])
    alone = results_of(keras.layers.BatchNormalization(**options), values, weights)
    for number in (0, 1, 6):  # one value per row
        np.testing.assert_allclose(ours[number], alone[number][rows], rtol=1e-9, atol=1e-9)
    for number in (2, 3):  # gradients of the parameters, to be summed over the ranks
        np.testing.assert_allclose(hvd.allreduce(ours[number], op=hvd.Sum), alone[number], rtol=1e-9, atol=1e-9)
    for number in (4, 5):  # moving averages
        np.testing.assert_allclose(ours[number], alone[number], rtol=1e-9)


@on_tensorflow_ranks(2)
def test_synchronized_batch_normalization_in_fit_and_in_files(tmp_path):
    me = hvd.rank()
    generator = np.random.default_rng(5)
    x, y = generator.normal(2.0, 5.0, (32, 4)).astype("float32"), generator.normal(size=(32, 1)).astype("float32")

    def trained(layer, optimizer, x, y, batch):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), layer, keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        model.fit(x, y, batch, 2, shuffle=False, verbose=0)
        return model

    mine = np.arange(32).reshape(-1, 2, 4)[:, me].reshape(-1)
    sgd = keras.optimizers.SGD
    ours = trained(hvd.SyncBatchNormalization(), hvd.DistributedOptimizer(sgd(0.05)), x[mine], y[mine], 4)
    alone = trained(keras.layers.BatchNormalization(), sgd(0.05), x, y, 8)
    for got, expected in zip(ours.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    ours.save(f"{tmp_path}/{me}.keras")
    again = keras.saving.load_model(f"{tmp_path}/{me}.keras")
    assert type(again.layers[1]) is hvd.SyncBatchNormalization
    np.testing.assert_array_equal(again.predict(x, verbose=0), ours.predict(x, verbose=0))
    for wrong in ({"fused": True}, {"renorm": True}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            hvd.SyncBatchNormalization(**wrong)


@on_tensorflow_ranks(3)
def test_rank_and_size_are_read_when_the_graph_runs():
    first = hvd.add_process_set([0, 2])

    @tf.function
    def read_ranks():
        world = hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()
        number = first.process_set_id
        return *world, hvd.size_op(number), hvd.process_set_included_op(number), hvd.process_set_included_op()

    me = hvd.rank()
    assert [int(value) for value in read_ranks()] == [me, 3, me, 3, 2, int(me != 1), 1]
