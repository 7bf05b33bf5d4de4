"""horocache for JAX: ``import horocache.jax as hvd``. Works on arrays in host memory, also in JAX's transformations."""

from horocache.jax.compression import Compression
from horocache.jax.functions import (
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
from horocache.jax.training import broadcast_parameters, reduce_gradients

from horocache import common_api
from horocache.collectives.api import join
from horocache.collectives.object_collectives import allgather_object, broadcast_object
from horocache.common_api import *  # noqa: F403

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
