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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horocache.collectives.api import (
        Adasum,
        And,
        Average,
        Max,
        Min,
        Or,
        Product,
        Sum,
        Xor,
        barrier,
        join,
        poll,
        synchronize,
    )
    from horocache.collectives.dynamic_process_sets import add_process_set, remove_process_set
    from horocache.collectives.numpy import Compression
    from horocache.collectives.object_collectives import allgather_object, broadcast_object
    from horocache.core.build_info import (
        ccl_built,
        cuda_built,
        ddl_built,
        gloo_built,
        gloo_enabled,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        rocm_built,
    )
    from horocache.core.context import (
        abort,
        cross_rank,
        cross_size,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        metrics,
        rank,
        size,
    )
    from horocache.core.lifecycle import init, shutdown
    from horocache.core.process_set import ProcessSet, global_process_set, process_sets, world
    from horocache.errors import (
        AbortedError,
        CollectiveError,
        CorruptError,
        DuplicateNameError,
        ForkedProcessError,
        HorocacheError,
        HorovodInternalError,
        HorovodVersionMismatchError,
        HostsUpdatedInterrupt,
        InternalError,
        InvalidArgumentError,
        MismatchError,
        NonFiniteError,
        NotInitializedError,
        OutOfMemoryError,
        PeerLost,
        PeerLostError,
        RunError,
        ShutDownError,
        StallError,
        StartupError,
        UnsupportedError,
        VersionSkewError,
    )
    from horocache.launch.function import run
    from horocache.observe.overlap import overlap
    from horocache.observe.recording import start_timeline, stop_timeline

    __version__: str

    from horocache.collectives.numpy import collectives as _collectives

    allgather = _collectives.allgather
    allgather_ = _collectives.allgather_
    allgather_async = _collectives.allgather_async
    allgather_async_ = _collectives.allgather_async_
    allgatherv = _collectives.allgatherv
    allgatherv_async = _collectives.allgatherv_async
    allreduce = _collectives.allreduce
    allreduce_ = _collectives.allreduce_
    allreduce_async = _collectives.allreduce_async
    allreduce_async_ = _collectives.allreduce_async_
    allreduce_many_async_ = _collectives.allreduce_many_async_
    alltoall = _collectives.alltoall
    alltoall_ = _collectives.alltoall_
    alltoall_async = _collectives.alltoall_async
    alltoall_async_ = _collectives.alltoall_async_
    alltoallv = _collectives.alltoallv
    alltoallv_async = _collectives.alltoallv_async
    broadcast = _collectives.broadcast
    broadcast_ = _collectives.broadcast_
    broadcast_async = _collectives.broadcast_async
    broadcast_async_ = _collectives.broadcast_async_
    empty = _collectives.empty
    empty_shared = _collectives.empty_shared
    gather = _collectives.gather
    gather_async = _collectives.gather_async
    gatherv = _collectives.gatherv
    gatherv_async = _collectives.gatherv_async
    grouped_allgather = _collectives.grouped_allgather
    grouped_allgather_ = _collectives.grouped_allgather_
    grouped_allgather_async = _collectives.grouped_allgather_async
    grouped_allgather_async_ = _collectives.grouped_allgather_async_
    grouped_allreduce = _collectives.grouped_allreduce
    grouped_allreduce_ = _collectives.grouped_allreduce_
    grouped_allreduce_async = _collectives.grouped_allreduce_async
    grouped_allreduce_async_ = _collectives.grouped_allreduce_async_
    grouped_alltoall = _collectives.grouped_alltoall
    grouped_alltoall_ = _collectives.grouped_alltoall_
    grouped_alltoall_async = _collectives.grouped_alltoall_async
    grouped_alltoall_async_ = _collectives.grouped_alltoall_async_
    grouped_broadcast = _collectives.grouped_broadcast
    grouped_broadcast_ = _collectives.grouped_broadcast_
    grouped_broadcast_async = _collectives.grouped_broadcast_async
    grouped_broadcast_async_ = _collectives.grouped_broadcast_async_
    grouped_reducescatter = _collectives.grouped_reducescatter
    grouped_reducescatter_ = _collectives.grouped_reducescatter_
    grouped_reducescatter_async = _collectives.grouped_reducescatter_async
    grouped_reducescatter_async_ = _collectives.grouped_reducescatter_async_
    irecv = _collectives.irecv
    is_shared = _collectives.is_shared
    isend = _collectives.isend
    recv = _collectives.recv
    reduce = _collectives.reduce
    reduce_async = _collectives.reduce_async
    reducescatter = _collectives.reducescatter
    reducescatter_ = _collectives.reducescatter_
    reducescatter_async = _collectives.reducescatter_async
    reducescatter_async_ = _collectives.reducescatter_async_
    reducescatterv = _collectives.reducescatterv
    reducescatterv_async = _collectives.reducescatterv_async
    scatter = _collectives.scatter
    scatter_async = _collectives.scatter_async
    scatterv = _collectives.scatterv
    scatterv_async = _collectives.scatterv_async
    send = _collectives.send
    sendrecv = _collectives.sendrecv

__all__ = [
    "AbortedError",
    "Adasum",
    "And",
    "Average",
    "CollectiveError",
    "Compression",
    "CorruptError",
    "DuplicateNameError",
    "ForkedProcessError",
    "HorocacheError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "InternalError",
    "InvalidArgumentError",
    "Max",
    "Min",
    "MismatchError",
    "NonFiniteError",
    "NotInitializedError",
    "Or",
    "OutOfMemoryError",
    "PeerLost",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "RunError",
    "ShutDownError",
    "StallError",
    "StartupError",
    "Sum",
    "UnsupportedError",
    "VersionSkewError",
    "Xor",
    "__version__",
    "abort",
    "add_process_set",
    "allgather",
    "allgather_",
    "allgather_async",
    "allgather_async_",
    "allgather_object",
    "allgatherv",
    "allgatherv_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "allreduce_many_async_",
    "alltoall",
    "alltoall_",
    "alltoall_async",
    "alltoall_async_",
    "alltoallv",
    "alltoallv_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "empty",
    "empty_shared",
    "gather",
    "gather_async",
    "gatherv",
    "gatherv_async",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_",
    "grouped_allgather_async",
    "grouped_allgather_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_alltoall",
    "grouped_alltoall_",
    "grouped_alltoall_async",
    "grouped_alltoall_async_",
    "grouped_broadcast",
    "grouped_broadcast_",
    "grouped_broadcast_async",
    "grouped_broadcast_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_",
    "grouped_reducescatter_async",
    "grouped_reducescatter_async_",
    "init",
    "irecv",
    "is_homogeneous",
    "is_initialized",
    "is_shared",
    "isend",
    "join",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "overlap",
    "poll",
    "process_sets",
    "rank",
    "recv",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_",
    "reducescatter_async",
    "reducescatter_async_",
    "reducescatterv",
    "reducescatterv_async",
    "remove_process_set",
    "rocm_built",
    "run",
    "scatter",
    "scatter_async",
    "scatterv",
    "scatterv_async",
    "send",
    "sendrecv",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
    "world",
]

# The module of each public name. Names that are not listed are methods of the NumPy collectives.
_HOME = {
    "collectives.barrier": {
        "barrier",
    },
    "collectives.completion": {
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
    "core.process_set": {
        "ProcessSet",
        "global_process_set",
        "process_sets",
        "world",
    },
    "errors": {
        "AbortedError",
        "CollectiveError",
        "CorruptError",
        "DuplicateNameError",
        "ForkedProcessError",
        "HorocacheError",
        "HorovodInternalError",
        "HorovodVersionMismatchError",
        "HostsUpdatedInterrupt",
        "InternalError",
        "InvalidArgumentError",
        "MismatchError",
        "NonFiniteError",
        "NotInitializedError",
        "OutOfMemoryError",
        "PeerLost",
        "PeerLostError",
        "RunError",
        "ShutDownError",
        "StallError",
        "StartupError",
        "UnsupportedError",
        "VersionSkewError",
    },
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
    if name not in __all__:
        raise AttributeError(f"module 'horocache' has no attribute {name!r}")
    if name == "__version__":
        value: Any = importlib.import_module("horocache._core").__version__
    elif name in _MODULE_OF:
        value = getattr(importlib.import_module(f"horocache.{_MODULE_OF[name]}"), name)
    else:
        value = getattr(importlib.import_module("horocache.collectives.numpy").collectives, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
