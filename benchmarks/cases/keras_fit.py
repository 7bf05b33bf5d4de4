"""Training a network for images of 28 by 28 pixels: with a tape against tf.distribute's own collectives, and with fit.

Keras 3's ``fit`` does not run under MultiWorkerMirroredStrategy. The strategy therefore runs the loop of TensorFlow's
guide, and the same loop runs with horocache's tape. ``fit`` with horocache is compared with ``fit`` without
communication, in separate processes: in processes that are workers of a strategy, every ``fit`` waits now and then.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.cases.functions import import_tensorflow
from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate

TITLE = "Keras on TensorFlow"
_STRATEGY = "MultiWorkerMirroredStrategy"
_CEILING = "no communication"
_BATCH, _RATE = 64, 0.01


def jobs(quick: bool) -> list[Job]:
    """Two jobs, loop and fit, if TensorFlow is installed."""
    if importlib.util.find_spec("tensorflow") is None:
        return []
    parameters = {"steps": 5 if quick else 10, "budget_s": 5.0 if quick else 30.0}
    return [Job("keras_fit", 2, {**parameters, "by": by}, own_launcher=True) for by in ("loop", "fit")]


def measure(rank: Rank, steps: int, budget_s: float, by: str) -> list[Series]:
    """Measure blocks of ``steps`` steps, alternated; all ranks have the same data, so all losses must be equal."""
    trainers = _loops(rank, steps) if by == "loop" else _fits(steps)
    losses = {name: [train(), train()] for name, train in trainers.items()}
    for name, theirs in losses.items():
        if not all(map(partial(math.isclose, rel_tol=0.02), losses["horocache"], theirs)):
            raise AssertionError(f"losses are {losses['horocache']} with horocache and {theirs} with {name}")
    contestants = [Contestant(name, _without_result(train)) for name, train in trainers.items()]
    times = alternate(rank.page, contestants, repetitions=20, budget_s=budget_s, warm_up=1)
    case, samples = f"CNN, 4.8 MB, batch {_BATCH}, {by}", float(_BATCH * rank.size * steps)
    return [Series(case, name, "samples/s", one.seconds, samples, one.cpu_seconds) for name, one in times.items()]


def _loops(rank: Rank, steps: int) -> dict[str, Callable[[], float]]:
    _form_cluster(rank)
    tf = import_tensorflow()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import horocache.tensorflow as hvd

    hvd.init()
    return {
        "horocache": _loop_of_horocache(tf, steps),
        _STRATEGY: _loop_of_strategy(tf, steps, strategy, rank.size),
    }


def _fits(steps: int) -> dict[str, Callable[[], float]]:
    tf = import_tensorflow()
    import horocache.keras as hvd

    hvd.init()
    return {
        "horocache": _fit(tf, steps, hvd.DistributedOptimizer),
        _CEILING: _fit(tf, steps, lambda optimizer: optimizer),
    }


def _without_result(train: Callable[[], float]) -> Callable[[], None]:
    def run() -> None:
        train()

    return run


def _form_cluster(rank: Rank) -> None:
    """Describe the other processes to TensorFlow, which needs their addresses before it starts."""
    path = rank.directory / "addresses.json"
    if rank.rank == 0:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(rank.size)]
        path.write_text(json.dumps([f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]), encoding="utf-8")
        for each in sockets:
            each.close()
    rank.page.barrier()
    workers = json.loads(path.read_text(encoding="utf-8"))
    task = {"type": "worker", "index": rank.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})


def _data(tf: Any, batch: int) -> Any:
    import numpy as np

    generator = np.random.default_rng(0)
    images = generator.normal(size=(8 * _BATCH, 28, 28, 1)).astype(np.float32)
    labels = generator.integers(0, 10, 8 * _BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
    return data.batch(batch, drop_remainder=True).with_options(options)


def _model() -> Any:
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def _loss(tf: Any, labels: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels, tf.int32), logits))


def _fit(tf: Any, steps: int, wrap: Callable[[Any], Any]) -> Callable[[], float]:
    import keras

    model = _model()
    model.compile(wrap(keras.optimizers.SGD(_RATE)), lambda labels, logits: _loss(tf, labels, logits))
    data = _data(tf, _BATCH)
    return lambda: float(model.fit(data, steps_per_epoch=steps, verbose=0, shuffle=False).history["loss"][-1])


def _loop(tf: Any, steps: int, data: Any, step: Callable[[Any, Any], Any]) -> Callable[[], float]:
    batches = iter(data)
    one = tf.function(lambda: step(*next(batches)))

    def train() -> float:
        losses = [one() for _ in range(steps)]
        return math.fsum(float(loss) for loss in losses) / steps

    return train


def _update(tf: Any, model: Any, images: Any, labels: Any, gradients: Callable[[Any, Any, Any], Any]) -> Any:
    with tf.GradientTape() as tape:
        loss = _loss(tf, labels, model(images, training=True))
    variables = [variable.value for variable in model.trainable_variables]
    for variable, gradient in zip(variables, gradients(tape, loss, variables), strict=True):
        variable.assign_sub(_RATE * gradient)
    return loss


def _loop_of_horocache(tf: Any, steps: int) -> Callable[[], float]:
    import horocache.tensorflow as hvd

    model = _model()

    def gradients(tape: Any, loss: Any, variables: Any) -> Any:
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    return _loop(tf, steps, _data(tf, _BATCH), lambda images, labels: _update(tf, model, images, labels, gradients))


def _loop_of_strategy(tf: Any, steps: int, strategy: Any, ranks: int) -> Callable[[], float]:
    with strategy.scope():
        model = _model()

    def gradients(tape: Any, loss: Any, variables: Any) -> Any:
        computed = tape.gradient(loss, variables)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, computed)

    def step(images: Any, labels: Any) -> Any:
        loss = strategy.run(lambda x, y: _update(tf, model, x, y, gradients), args=(images, labels))
        return strategy.experimental_local_results(loss)[0]

    return _loop(tf, steps, strategy.experimental_distribute_dataset(_data(tf, _BATCH * ranks)), step)
