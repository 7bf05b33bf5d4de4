"""``horovod.tensorflow``: the functions of :mod:`horocache.tensorflow`."""

import importlib
from typing import Any

from horocache.tensorflow import *  # noqa: F403

from . import compression, functions, mpi_ops, sync_batch_norm  # noqa: F401


def __getattr__(name: str) -> Any:
    if name in ("elastic", "keras"):
        return importlib.import_module(f"horovod.tensorflow.{name}")
    raise AttributeError(f"module 'horovod.tensorflow' has no attribute {name!r}")
