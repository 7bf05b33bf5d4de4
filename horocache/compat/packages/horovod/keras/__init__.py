"""``horovod.keras``: the functions of :mod:`horocache.keras`."""

import importlib
from typing import Any

from horocache.keras import *  # noqa: F403

from . import callbacks  # noqa: F401


def __getattr__(name: str) -> Any:
    if name == "elastic":
        return importlib.import_module("horovod.common.elastic")  # which says why not
    raise AttributeError(f"module 'horovod.keras' has no attribute {name!r}")
