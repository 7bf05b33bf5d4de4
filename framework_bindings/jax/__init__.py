"""horocache for JAX: ``import horocache.jax as hvd``. Works on arrays in host memory, also in JAX's transformations."""

from horocache import common_api
from horocache.collectives.api import join
from horocache.collectives.object_collectives import allgather_object, broadcast_object
from horocache.common_api import *  # noqa: F403

from .compression import Compression
from .functions import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allreduce,
    recv,
    reducescatter,
    send,
)
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
__all__ += common_api.__all__
