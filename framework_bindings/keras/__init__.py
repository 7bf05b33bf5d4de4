"""horocache for Keras 3, on TensorFlow, torch or JAX: ``import horocache.keras as hvd``. Names are Horovod's."""

from horocache import common_api
from horocache.collectives.api import barrier
from horocache.collectives.object_collectives import allgather_object, broadcast_object
from horocache.common_api import *  # noqa: F403

from . import callbacks
from .backends import backend
from .functions import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    load_model,
    reducescatter,
)
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer
from .variables import broadcast_variables

Compression = backend().Compression

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "load_model",
    "reducescatter",
]
__all__ += common_api.__all__
