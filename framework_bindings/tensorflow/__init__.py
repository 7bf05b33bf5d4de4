"""horocache for TensorFlow: ``import horocache.tensorflow as hvd``. Names and argument orders are Horovod's."""

from typing import Any

from horocache import common_api
from horocache.common_api import *  # noqa: F403

from . import gradients, vectorized  # noqa: F401  (register them with TensorFlow)
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
from .optimizer import DistributedOptimizer
from .parameters import allgather_object, broadcast_object, broadcast_object_fn, broadcast_variables
from .place import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from .sessions import BroadcastGlobalVariablesHook, broadcast_global_variables
from .tape import DistributedGradientTape, PartialDistributedGradientTape


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # a Keras layer; importing Keras takes seconds
        from .sync_batch_norm import SyncBatchNormalization  # noqa: PLC0415

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",  # noqa: F405  (of __getattr__)
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
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
__all__ += common_api.__all__
