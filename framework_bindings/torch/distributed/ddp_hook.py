"""The communication hook that reduces the buckets of torch's ``DistributedDataParallel`` with horocache."""

# DDP compares the hook's annotations with its classes, so they must not be strings (no `annotations` import here).
import itertools
import threading
from collections import defaultdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from horocache.collectives.api import Average, set_id, synchronize
from horocache.collectives.compression import is_codec
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError, UnsupportedError
from torch.utils.weak import WeakTensorKeyDictionary

from ..adapter import collectives
from .future_threads import Waiter

GradBucket: Any = getattr(dist, "GradBucket", None)  # None in a torch without torch.distributed, and so without DDP


class _Names:
    """Names of buckets. A bucket's name is the number of its first parameter, in the order in which buckets first came.

    DDP reduces the same buckets in the same order on all ranks, so the numbers are equal on all ranks. The core's
    automatic names would differ: they depend on which operations are over, and the waiter notices that at different
    times on different ranks.
    """

    def __init__(self) -> None:
        self._numbers = WeakTensorKeyDictionary()
        self._next = itertools.count()
        self._lock = threading.Lock()

    def of(self, parameter: torch.Tensor) -> str:
        """Return the name of the bucket that begins with ``parameter``."""
        with self._lock:
            if parameter not in self._numbers:
                self._numbers[parameter] = next(self._next)
            return f"ddp.{self._numbers[parameter]}"


# By number of the process set: operations of different sets end in any order.
_waiters: defaultdict[int, Waiter] = defaultdict(Waiter)
_names = _Names()


def ddp_hook(state: ProcessSet | None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of DDP with horocache; install it with ``model.register_comm_hook(None, ddp_hook)``.

    Buckets are reduced while the backward pass goes on. torch's ``fp16_compress_wrapper`` can wrap this hook.

    Args:
        state: the ranks that take part, which must be those of DDP's process group; None means all ranks.
        bucket: DDP's bucket: gradients in one tensor, which is reduced in place.

    Returns:
        A future of the bucket's tensor.

    Raises:
        InvalidArgumentError: ``state`` is neither a ProcessSet nor None. UnsupportedError: ``state`` is a codec. Also
            the errors of an allreduce; if the reduction fails, the backward pass raises its error as a RuntimeError.
    """
    if is_codec(state):
        raise UnsupportedError(
            f"ddp_hook sends gradients uncompressed, so it cannot take Compression.{state.wire_name}. Use "
            "horocache.torch.DistributedOptimizer(compression=...) without DDP, or torch's fp16_compress_wrapper."
        )
    process_set = global_process_set if state is None else state
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(
            f"the state of ddp_hook is a ProcessSet, or None for all ranks, not {state!r}: "
            "model.register_comm_hook(None, ddp_hook)."
        )
    number = set_id(process_set)
    buffer = bucket.buffer()
    name = _names.of(bucket.parameters()[0])
    handle = collectives.allreduce_async_(buffer, name=name, op=Average, process_set=process_set)
    devices = [] if buffer.is_cpu else [buffer.device]
    return _waiters[number].put(partial(synchronize, handle), devices)
