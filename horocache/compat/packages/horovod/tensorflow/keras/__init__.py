"""``horovod.tensorflow.keras``: the functions of :mod:`horocache.tensorflow.keras`."""

import importlib
from typing import Any

from horocache.tensorflow.keras import *  # noqa: F403

from . import callbacks  # noqa: F401


def __getattr__(name: str) -> Any:
    if name == "elastic":
        return importlib.import_module("horovod.tensorflow.elastic")  # which says why not
    raise AttributeError(f"module 'horovod.tensorflow.keras' has no attribute {name!r}")
