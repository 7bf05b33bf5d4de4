"""The names that every framework's package exports: job and ranks, errors, reductions, process sets, timeline."""

from horocache import errors
from horocache.collectives.api import Adasum, And, Average, Max, Min, Or, Product, ReduceOp, Sum, Xor
from horocache.collectives.dynamic_process_sets import add_process_set, remove_process_set
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
from horocache.core.process_set import ProcessSet, global_process_set, process_sets
from horocache.errors import *  # noqa: F403
from horocache.observe.overlap import overlap
from horocache.observe.recording import start_timeline, stop_timeline

__all__ = [
    "Adasum",
    "And",
    "Average",
    "Max",
    "Min",
    "Or",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "Xor",
    "abort",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "overlap",
    "process_sets",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
__all__ += errors.__all__
