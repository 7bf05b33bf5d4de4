"""Horovod's name for :mod:`horocache.keras` with Keras on TensorFlow."""

import keras
from horocache.keras import *  # noqa: F403
from horocache.keras import __all__  # noqa: F401

from horocache.errors import UnsupportedError

if keras.config.backend() != "tensorflow":
    raise UnsupportedError(
        f"horocache.tensorflow.keras is for Keras on TensorFlow; this one is on {keras.config.backend()}. Import "
        "horocache.keras, which is for all, or set KERAS_BACKEND=tensorflow."
    )
