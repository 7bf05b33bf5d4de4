"""Ranks that are forked from a server with TensorFlow imported; otherwise the import takes each rank seconds."""

import functools
import importlib.util
import sys
from tempfile import TemporaryDirectory

import pytest
from ranks import on_ranks

from horocache.testing import run_ranks

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def run(function, size, *, environment=None, **options):
    """Call :func:`run_ranks` with a temporary ``TMPDIR``.

    AutoGraph writes generated code to files there, which a forked process does not remove when it ends.
    """
    with TemporaryDirectory(prefix="hc-tf-") as folder:
        environment = {"TMPDIR": folder, "TF_CPP_MIN_LOG_LEVEL": "2", **(environment or {})}
        return run_ranks(function, size, environment=environment, preload=("tensorflow",), **options)


on_tensorflow_ranks = functools.partial(on_ranks, run=run)

BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name}"))
    for name in ("tensorflow", "torch", "jax")
]


def run_keras(body, size, backend, *args, check=True):
    """Call :func:`run` with Keras on ``backend``, one of ``BACKENDS``; ``body`` is a local function."""

    def with_backend(*args):
        # The server has imported TensorFlow, which has imported Keras. Another backend needs a fresh import.
        others = [name for name in sys.modules if name.partition(".")[0] == "keras" and backend != "tensorflow"]
        for name in others:
            del sys.modules[name]
        if backend == "jax":
            import jax

            # XLA's optimizations take most of the time, and each compiled function runs only a few times.
            jax.config.update("jax_disable_most_optimizations", True)
        import keras

        assert keras.config.backend() == backend
        return body(*args)

    return run(with_backend, size, args=args, environment={"KERAS_BACKEND": backend}, timeout=120, check=check)
