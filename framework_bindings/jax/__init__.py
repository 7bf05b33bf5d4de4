"""horocache for JAX: ``import horocache.jax as hvd``. Arrays of the host, also inside of JAX's transformations."""

from horocache import basics
from horocache.basics import *  # noqa: F403
from horocache.objects import allgather_object, broadcast_object
from horocache.ops import join

from .compression import Compression
from .functions import allgather, allreduce, alltoall, barrier, broadcast, grouped_allreduce, recv, reducescatter, send
from .training import broadcast_parameters, reduce_gradients

__all__ = [
    "Compression",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "grouped_allreduce",
    "join",
    "recv",
    "reduce_gradients",
    "reducescatter",
    "send",
]
__all__ += basics.__all__
