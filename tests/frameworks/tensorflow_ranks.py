"""Ranks whose server has imported TensorFlow, which takes each of them seconds otherwise."""

import importlib.util
import sys
from tempfile import TemporaryDirectory

import pytest

from horocache.testing import run_ranks

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def run(function, size, *, environment=None, **options):
    """:func:`run_ranks`; without the code that AutoGraph writes to files, and leaves when a forked process ends."""
    with TemporaryDirectory(prefix="hc-tf-") as folder:
        environment = {"TMPDIR": folder, "TF_CPP_MIN_LOG_LEVEL": "2", **(environment or {})}
        return run_ranks(function, size, environment=environment, preload=("tensorflow",), **options)


BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name}"))
    for name in ("tensorflow", "torch", "jax")
]


def run_keras(body, size, backend, *args, check=True):
    """The same with Keras on one of ``BACKENDS``; ``body`` is a local function."""

    def with_backend(*args):
        # The server has imported TensorFlow, which has imported Keras.
        others = [name for name in sys.modules if name.partition(".")[0] == "keras" and backend != "tensorflow"]
        for name in others:
            del sys.modules[name]
        if backend == "jax":
            import jax

            # XLA takes most of the time, and what it optimizes runs a few times.
            jax.config.update("jax_disable_most_optimizations", True)
        import keras

        assert keras.config.backend() == backend
        return body(*args)

    return run(with_backend, size, args=args, environment={"KERAS_BACKEND": backend}, timeout=120, check=check)
