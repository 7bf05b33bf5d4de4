"""Whole Keras programs: the example on every backend, a rank that dies during ``fit``, and models that differ."""

import os
import re
import runpy
import signal
from pathlib import Path

import numpy as np
import pytest

from .tensorflow_ranks import BACKENDS, on_keras_ranks, run_keras

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "keras_digits.py"


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_example_recognizes_9_of_10_digits_after_4_epochs(backend, tmp_path):
    def run_example(path, folder):
        return runpy.run_path(path)["main"](["--epochs", "4", "--num-groups", "1", "--checkpoint", f"{folder}/x.keras"])

    outcomes = run_keras(run_example, 2, backend, str(EXAMPLE), str(tmp_path), check=False)
    assert all(outcome.ok and outcome.value == 0 for outcome in outcomes), [o.describe() for o in outcomes]
    output = outcomes[0].output
    assert f"Keras on {backend}: replicas of 2 processes are bit-identical" in output
    assert float(re.findall(r"test accuracy (\d\.\d{3})", output)[-1]) >= 0.9
    assert (tmp_path / "x.keras").exists()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_dies_during_fit_raises_on_the_other_ranks(backend):
    def fit_while_rank_1_dies():
        import horocache.keras as hvd
        import keras

        hvd.init()
        me = hvd.rank()
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")

        class Die(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if me == 1 and batch == 3:
                    os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(Exception, match=r"rank 1 .* was killed by signal 9"):
            model.fit(np.ones((640, 3)), np.ones((640, 1)), 4, 1, verbose=0, callbacks=[Die()])
        return "survived"

    outcomes = run_keras(fit_while_rank_1_dies, 2, backend, check=False)
    assert [outcome.value for outcome in outcomes] == ["survived", None], [o.describe() for o in outcomes]
    assert outcomes[1].exit_code == -signal.SIGKILL


@on_keras_ranks(2)
def test_fit_raises_if_the_models_differ_between_ranks():
    import horocache.keras as hvd
    import keras

    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1 + hvd.rank())])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(Exception, match=r"rank . submitted shape \[[1-3, ]+\], rank . submitted shape"):
        model.fit(np.ones((8, 3)), np.ones((8, 1 + hvd.rank())), 4, 1, verbose=0)
    assert float(np.asarray(hvd.allreduce(np.ones(1), op=hvd.Sum, name="after"))[0]) == 2.0
