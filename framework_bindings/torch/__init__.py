"""horocache for torch: ``import horocache.torch as hvd``. Names and argument orders are Horovod's."""

from horocache import common_api
from horocache.collectives.api import Handle, barrier, join, poll, synchronize
from horocache.collectives.object_collectives import allgather_object, broadcast_object
from horocache.common_api import *  # noqa: F403
from horocache.torch_entry_point import register_torch_backend

from . import ops
from .adapter import collectives
from .compile.mark_functions import mark_functions
from .compression import Compression
from .distributed.ddp_hook import ddp_hook
from .ops import *  # noqa: F403
from .optimizer.broadcast_optimizer_state import broadcast_optimizer_state
from .optimizer.broadcast_parameters import broadcast_parameters
from .optimizer.optimizer import DistributedOptimizer
from .sparse_allreduce import sparse_allreduce_async
from .sync_batch_norm import SyncBatchNorm

register_torch_backend()

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "Handle",
    "SyncBatchNorm",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "join",
    "poll",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += ops.__all__
__all__ += common_api.__all__

mark_functions({name: globals()[name] for name in __all__}, collectives)
