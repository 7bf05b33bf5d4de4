"""horocache for JAX: ``import horocache.jax as hvd``. Arrays of the host; inside of ``jax.jit`` by a callback."""

from horocache import basics
from horocache.basics import *  # noqa: F403
from horocache.objects import allgather_object, broadcast_object
from horocache.ops import barrier, join

from .compression import Compression
from .functions import allgather, allreduce, alltoall, broadcast, grouped_allreduce, reducescatter
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
    "reduce_gradients",
    "reducescatter",
]
__all__ += basics.__all__
