"""``horovod.torch``: the functions of :mod:`horocache.torch`."""

import importlib
from typing import Any

from horocache.torch import *  # noqa: F403

from . import compression, functions, mpi_ops, optimizer, sync_batch_norm  # noqa: F401


def __getattr__(name: str) -> Any:
    if name == "elastic":
        return importlib.import_module("horovod.torch.elastic")  # which says why not
    raise AttributeError(f"module 'horovod.torch' has no attribute {name!r}")
