"""horocache for TensorFlow: ``import horocache.tensorflow as hvd``. Names and argument orders are Horovod's."""

from typing import Any

from horocache._state import (
    abort,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from horocache.dynamic_sets import add_process_set, remove_process_set
from horocache.errors import (
    HorocacheError,
    HorovodInternalError,
    HorovodVersionMismatchError,
    HostsUpdatedInterrupt,
)
from horocache.observe.recording import start_timeline, stop_timeline
from horocache.ops import Adasum, And, Average, Max, Min, Or, Product, Sum, Xor
from horocache.process_set import ProcessSet, global_process_set, process_sets

from . import gradients  # noqa: F401  (registers them)
from .compression import Compression
from .functions import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from .optimizer import DistributedOptimizer, broadcast_global_variables
from .parameters import allgather_object, broadcast_object, broadcast_object_fn, broadcast_variables
from .place import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from .tape import DistributedGradientTape, PartialDistributedGradientTape


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # is a layer of Keras, which takes seconds to import
        from .sync_batch_norm import SyncBatchNormalization  # noqa: PLC0415

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Adasum",
    "And",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorocacheError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "Or",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "Xor",
    "abort",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "process_sets",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
