"""torch's ``DistributedDataParallel`` with its buckets reduced by horocache."""

# DDP compares the hook's annotations with its classes, so they must not be text.
import itertools
import threading
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from horocache.errors import InvalidArgumentError
from horocache.ops import Average, set_id, synchronize
from horocache.process_set import ProcessSet, global_process_set
from torch.utils.weak import WeakTensorKeyDictionary

from .adapter import collectives

Future: TypeAlias = "torch.futures.Future[torch.Tensor]"
GradBucket: Any = getattr(dist, "GradBucket", None)  # a torch without torch.distributed has no DDP either


class _Waiter:
    """Fulfils the futures that DDP waits for, in a thread: DDP waits in C++, where nobody else would call us.

    Role: one per process; its thread starts with the first bucket and sleeps between backward passes.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[int, torch.Tensor, Future]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, handle: int, buffer: torch.Tensor, future: Future) -> None:
        """Let the thread wait for an operation."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="horocache-ddp", daemon=True)
                self._thread.start()
        self._queue.put((handle, buffer, future))

    def _run(self) -> None:
        while True:
            handle, buffer, future = self._queue.get()
            try:
                synchronize(handle)
            except Exception as error:
                set_exception: Any = future.set_exception
                set_exception(error)
            else:
                future.set_result(buffer)


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


_waiter = _Waiter()
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
    set_id(process_set)
    buffer = bucket.buffer()
    name = _names.of(bucket.parameters()[0])
    handle = collectives.allreduce_async_(buffer, name=name, op=Average, process_set=process_set)
    future: Future = torch.futures.Future()
    _waiter.put(handle, buffer, future)
    return future
