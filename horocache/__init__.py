"""A coordination daemon for distributed deep learning.

Ranks agree on a collective once and then run it from a response cache. ``import horocache as hc`` gives the collectives
on NumPy arrays::

    hc.init()
    total = hc.allreduce(array, op=hc.Sum)

``import horocache.torch as hvd`` gives them on torch tensors, with an optimizer. Names and argument orders are
Horovod's.

Importing this package loads neither a framework nor the core; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from horocache import errors

# The module of each public name, except for the methods of the NumPy collectives.
_HOME = {
    "collectives.barrier": {
        "barrier",
    },
    "collectives.completion": {
        "Handle",
        "poll",
        "synchronize",
    },
    "collectives.dynamic_process_sets": {
        "add_process_set",
        "remove_process_set",
    },
    "collectives.join": {
        "join",
    },
    "collectives.numpy": {
        "Compression",
    },
    "collectives.object_collectives": {
        "allgather_object",
        "broadcast_object",
    },
    "collectives.reduce_op": {
        "Adasum",
        "And",
        "Average",
        "Max",
        "Min",
        "Or",
        "Product",
        "ReduceOp",
        "Sum",
        "Xor",
    },
    "core.build_info": {
        "ccl_built",
        "cuda_built",
        "ddl_built",
        "gloo_built",
        "gloo_enabled",
        "mpi_built",
        "mpi_enabled",
        "mpi_threads_supported",
        "nccl_built",
        "rocm_built",
    },
    "core.context": {
        "abort",
        "cross_rank",
        "cross_size",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "metrics",
        "rank",
        "size",
    },
    "core.lifecycle": {
        "init",
        "shutdown",
    },
    "core.metrics": {
        "Metrics",
    },
    "core.process_set": {
        "ProcessSet",
        "global_process_set",
        "process_sets",
        "world",
    },
    "errors": set(errors.__all__),
    "launch.function": {
        "run",
    },
    "observe.overlap": {
        "overlap",
    },
    "observe.recording": {
        "start_timeline",
        "stop_timeline",
    },
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name == "__all__":
        from horocache.collectives.operations import NAMES  # noqa: PLC0415

        value: Any = sorted(["__version__", *_MODULE_OF, *NAMES])
    elif name == "__version__":
        value = importlib.import_module("horocache._core").__version__
    elif name in _MODULE_OF:
        value = getattr(importlib.import_module(f"horocache.{_MODULE_OF[name]}"), name)
    elif name.startswith("_") or _is_submodule(name) or name not in __getattr__("__all__"):
        raise AttributeError(f"module 'horocache' has no attribute {name!r}")
    else:
        value = getattr(importlib.import_module("horocache.collectives.numpy").collectives, name)
    globals()[name] = value
    return value


def _is_submodule(name: str) -> bool:
    # `from horocache import compat` asks for the attribute first, which must not load the list of collectives.
    return importlib.util.find_spec(f"horocache.{name}") is not None


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
