"""horocache for JAX: ``import horocache.jax as hvd``. Arrays of the host; inside of ``jax.jit`` by a callback."""

from horocache._state import (
    abort,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    rank,
    shutdown,
    size,
)
from horocache.dynamic_sets import add_process_set, remove_process_set
from horocache.errors import HorocacheError, HorovodInternalError
from horocache.objects import allgather_object, broadcast_object
from horocache.observe.recording import start_timeline, stop_timeline
from horocache.ops import Adasum, And, Average, Max, Min, Or, Product, Sum, Xor, barrier, join
from horocache.process_set import ProcessSet, global_process_set, process_sets

from .compression import Compression
from .functions import allgather, allreduce, alltoall, broadcast, grouped_allreduce, reducescatter
from .training import broadcast_parameters, reduce_gradients

__all__ = [
    "Adasum",
    "And",
    "Average",
    "Compression",
    "HorocacheError",
    "HorovodInternalError",
    "Max",
    "Min",
    "Or",
    "ProcessSet",
    "Product",
    "Sum",
    "Xor",
    "abort",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "metrics",
    "process_sets",
    "rank",
    "reduce_gradients",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
