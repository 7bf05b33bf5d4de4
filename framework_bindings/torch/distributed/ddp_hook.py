"""torch's ``DistributedDataParallel`` with its buckets reduced by horocache."""

# DDP compares the hook's annotations with its classes, so they must not be text.
import itertools
import threading
from collections import defaultdict
from functools import partial
from typing import Any

from horocache.torch.adapter import collectives
from horocache.torch.distributed.future_threads import Waiter

import torch
import torch.distributed as dist
from horocache.collectives.api import Average, set_id, synchronize
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.errors import InvalidArgumentError
from torch.utils.weak import WeakTensorKeyDictionary

GradBucket: Any = getattr(dist, "GradBucket", None)  # a torch without torch.distributed has no DDP either


class _Names:
    """A name for each bucket: that of its first parameter, which is a number in the order in which buckets came.

    DDP reduces the same buckets in the same order on all ranks, so the numbers are equal. Names of the core's own would
    not be: they depend on which operations are over, and the waiter sees that at other times on other ranks.
    """

    def __init__(self) -> None:
        self._numbers = WeakTensorKeyDictionary()
        self._next = itertools.count()
        self._lock = threading.Lock()

    def of(self, parameter: torch.Tensor) -> str:
        """The name of the bucket that begins with ``parameter``."""
        with self._lock:
            if parameter not in self._numbers:
                self._numbers[parameter] = next(self._next)
            return f"ddp.{self._numbers[parameter]}"


# By process set: between sets there is no order in which operations end.
_waiters: defaultdict[int, Waiter] = defaultdict(Waiter)
_names = _Names()


def ddp_hook(state: ProcessSet | None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that averages DDP's buckets with horocache: ``model.register_comm_hook(None, ddp_hook)``.

    Buckets travel while the backward pass goes on. torch's ``fp16_compress_wrapper`` can be put around it.

    Args:
        state: the ranks that take part, which must be those of DDP's process group; None: all.
        bucket: what DDP passes: gradients in one tensor, which is reduced in place.

    Returns:
        A future of the bucket's tensor.

    Raises:
        InvalidArgumentError: ``state`` is neither. The errors of an allreduce; those of a reduction that fails come
        from the backward pass, as RuntimeError.
    """
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
    return _waiters[number].put(partial(synchronize, handle))
