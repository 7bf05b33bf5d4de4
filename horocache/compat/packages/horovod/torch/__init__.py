"""``horovod.torch``: the functions of :mod:`horocache.torch`."""

import importlib
from typing import Any

from horocache.torch import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name == "elastic":
        return importlib.import_module("horovod.torch.elastic")  # which says why not
    raise AttributeError(f"module 'horovod.torch' has no attribute {name!r}")
