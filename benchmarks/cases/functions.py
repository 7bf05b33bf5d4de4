"""100 gradients of mixed sizes in a ``tf.function``: with horocache, unreduced, with one Python call for each."""

from __future__ import annotations

import importlib.util
import os
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate

TITLE = "Gradients in a tf.function"
OVER = "us per gradient over the identity"
_IDENTITY, _PYTHON = "identity", "tf.py_function"
_COUNT = 100
_SIZES = (16, 64, 256, 1024, 4096, 16384)  # elements of float32


def jobs(quick: bool) -> list[Job]:
    """One job, if TensorFlow is installed."""
    if importlib.util.find_spec("tensorflow") is None:
        return []
    return [Job("functions", 2, {"budget_s": 3.0 if quick else 12.0}, own_launcher=True)]


def measure(rank: Rank, budget_s: float) -> list[Series]:
    """Measure functions that compute 100 tensors, without reducing them and with each way to reduce them."""
    tf = import_tensorflow()
    import horocache.tensorflow as hvd

    hvd.init()
    functions = _functions(tf, hvd)
    _check(tf, functions)
    contestants = [Contestant(name, function) for name, function in functions.items()]
    times = alternate(rank.page, contestants, repetitions=200, budget_s=budget_s, warm_up=5)
    nothing = statistics.median(times[_IDENTITY].seconds)
    case = f"{_COUNT} gradients"
    series = [Series(case, name, "ms", one.seconds, cpu_seconds=one.cpu_seconds) for name, one in times.items()]
    for name in functions:
        if name.startswith("horocache"):
            over = [1e6 * (seconds - nothing) / _COUNT for seconds in times[name].seconds]
            series.append(Series(f"{case}, each", name, OVER, over))
    hvd.shutdown()
    return series


def import_tensorflow() -> Any:
    """Import TensorFlow with one thread for the arithmetic of an operation, as all contestants use."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    return tf


def _functions(tf: Any, hvd: Any) -> dict[str, Callable[[], Any]]:
    from horocache.collectives.numpy import collectives

    variables = _variables(tf, hvd.rank())

    def gradients(distribute: Callable[[Any], Any]) -> Any:
        # The gradients of half the sum of squares are the variables themselves.
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable * variable) for variable in variables]) / 2.0
        return distribute(tape).gradient(loss, variables)

    def as_it_is(tape: Any) -> Any:
        return tape

    def one_call_each() -> Any:
        def reduce(number: int, tensor: Any) -> Any:
            return collectives.allreduce(tensor.numpy(), name=f"python.{number}")

        computed = gradients(as_it_is)
        return [tf.py_function(partial(reduce, n), [each], tf.float32) for n, each in enumerate(computed)]

    return {
        _IDENTITY: tf.function(lambda: gradients(as_it_is)),
        "horocache": tf.function(lambda: gradients(hvd.DistributedGradientTape)),
        "horocache, 5 groups": tf.function(lambda: gradients(partial(hvd.DistributedGradientTape, num_groups=5))),
        _PYTHON: tf.function(one_call_each),
    }


def _variables(tf: Any, rank: int) -> list[Any]:
    import numpy as np

    sizes = np.random.default_rng(0).choice(_SIZES, _COUNT)
    return [tf.Variable(tf.fill([int(size)], float(number + rank))) for number, size in enumerate(sizes)]


def _check(tf: Any, functions: dict[str, Callable[[], Any]]) -> None:
    for name, function in functions.items():
        if name == _IDENTITY:
            continue
        for number, each in enumerate(function()):
            if not bool(tf.reduce_all(each == number + 0.5)):
                raise AssertionError(f"{name}: gradient {number} is {each[:4]}, and not {number + 0.5}")
