"""Ranks that are forked from a server with TensorFlow imported, because the import takes seconds."""

import functools
import importlib.util
import inspect
import os
import sys
from tempfile import TemporaryDirectory

import cloudpickle
import pytest
from ranks import on_ranks, with_parameters

from horocache.testing import run_ranks

# Ranks cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name}"))
    for name in ("tensorflow", "torch", "jax")
]


def run(function, size, *, environment=None, **options):
    """Call :func:`run_ranks` with a temporary ``TMPDIR``.

    AutoGraph writes generated code to files there, which a forked process does not remove when it ends.
    """
    with TemporaryDirectory(prefix="hc-tf-") as folder:
        environment = {"TMPDIR": folder, "TF_CPP_MIN_LOG_LEVEL": "2", **(environment or {})}
        return run_ranks(function, size, environment=environment, preload=("tensorflow",), **options)


on_tensorflow_ranks = functools.partial(on_ranks, run=run)


def use_keras_backend(backend):
    """Make ``import keras`` and ``import horocache.keras`` use a backend, one of ``BACKENDS``."""
    os.environ["KERAS_BACKEND"] = backend
    # The server has imported TensorFlow, which has imported Keras. Another backend needs a fresh import.
    if backend != "tensorflow":
        for name in [name for name in sys.modules if name.partition(".")[0] == "keras"]:
            del sys.modules[name]
    if backend == "jax":
        import jax

        # XLA's optimizations take most of the time, and each compiled function runs only a few times.
        jax.config.update("jax_disable_most_optimizations", True)
    import keras

    assert keras.config.backend() == backend


def run_keras(function, size, backend, *args, **options):
    """Call :func:`run` with Keras on ``backend``, one of ``BACKENDS``."""

    def with_backend():
        use_keras_backend(backend)
        return function(*args)

    with_backend.__module__ = function.__module__  # run_ranks() sends the functions of this module by value
    return run(with_backend, size, timeout=120, **options)


def on_keras_ranks(*sizes, backends=BACKENDS, **options):
    """Like ``on_tensorflow_ranks``, with Keras on each of the backends, for a test that imports Keras itself.

    The test may have the parameter ``backend``.
    """

    def decorate(body):
        parameters = [name for name in inspect.signature(body).parameters if name != "backend"]
        takes_backend = "backend" in inspect.signature(body).parameters

        @functools.wraps(body)
        def test(backend, **case):
            use_keras_backend(backend)
            body(**case, **({"backend": backend} if takes_backend else {}))

        on_each = pytest.mark.parametrize("backend", backends)
        return on_each(
            on_tensorflow_ranks(*sizes, timeout=120, **options)(with_parameters(test, ["backend", *parameters]))
        )

    return decorate


def is_distributed(optimizer):
    return "DistributedMixin" in [base.__name__ for base in type(optimizer).__mro__]
