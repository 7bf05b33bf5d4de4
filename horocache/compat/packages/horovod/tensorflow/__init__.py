"""``horovod.tensorflow``: the functions of :mod:`horocache.tensorflow`."""

import importlib
from typing import Any

from horocache.tensorflow import *  # noqa: F403

from horocache.compat.missing import attribute_error

from ..common.util import check_extension, gpu_available, split_list  # noqa: F401
from . import compression, functions, mpi_ops, sync_batch_norm, util  # noqa: F401
from .util import _cache, _executing_eagerly, _make_subgraph, refs_to_vars, vars_to_refs  # noqa: F401


def __getattr__(name: str) -> Any:
    if name == "keras":  # imported on demand, because the import takes seconds
        return importlib.import_module("horovod.tensorflow.keras")
    raise attribute_error("horovod.tensorflow", name)
