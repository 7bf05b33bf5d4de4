"""Ranks whose server has imported TensorFlow, which takes each of them seconds otherwise."""

from functools import partial

import pytest

from horocache.testing import run_ranks

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
run = partial(run_ranks, preload=("tensorflow",))
