"""horocache for Keras 3, on TensorFlow, torch or JAX: ``import horocache.keras as hvd``. Names are Horovod's."""

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
from horocache.errors import HorocacheError, HorovodInternalError, HostsUpdatedInterrupt
from horocache.objects import allgather_object, broadcast_object
from horocache.observe.recording import start_timeline, stop_timeline
from horocache.ops import Adasum, Average, Max, Min, Product, Sum, barrier
from horocache.process_set import ProcessSet, global_process_set

from . import callbacks
from .backends import backend
from .functions import allgather, allreduce, broadcast, broadcast_global_variables, load_model, reducescatter
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer
from .variables import broadcast_variables

Compression = backend().Compression

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorocacheError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "abort",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
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
    "load_model",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
