"""Ranks whose server has imported TensorFlow, which takes each of them seconds otherwise."""

from tempfile import TemporaryDirectory

import pytest

from horocache.testing import run_ranks

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def run(function, size, *, environment=None, **options):
    """:func:`run_ranks`; without the code that AutoGraph writes to files, and leaves when a forked process ends."""
    with TemporaryDirectory(prefix="hc-tf-") as folder:
        environment = {"TMPDIR": folder, "TF_CPP_MIN_LOG_LEVEL": "2", **(environment or {})}
        return run_ranks(function, size, environment=environment, preload=("tensorflow",), **options)
