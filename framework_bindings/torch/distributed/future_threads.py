"""Threads that fulfil torch's futures: who waits for those waits in C++, where nobody else would call us."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias
from weakref import WeakSet

import torch
from horocache.core.context import call_at_exit

Future: TypeAlias = "torch.futures.Future[Any]"
Wait: TypeAlias = Callable[[], Any]

_GRACE_S = 2.0
# A future that is made in Python has a Python object as its value, whatever it is; one of TorchScript has its type.
_SCRIPT = """
def after(done: Future[int], tensors: List[Tensor]) -> List[Tensor]:
    done.wait()
    return tensors

def start(done: Future[int], tensors: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(after, done, tensors)
"""

_threads: WeakSet[threading.Thread] = WeakSet()
_closable: WeakSet[Waiter | Finisher] = WeakSet()


def start_thread(target: Callable[..., object], *args: object) -> threading.Thread:
    """Start a thread that ends no later than the interpreter."""
    thread = threading.Thread(target=target, args=args, name="horocache-wait", daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


def _end_threads() -> None:
    # Python stops daemon threads wherever they are; one that is in torch's C++ takes the process with it.
    until = time.monotonic() + _GRACE_S
    for each in list(_closable):
        each.close()
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))


call_at_exit(_end_threads)


def _future_of(wait: Wait) -> tuple[Future, Future]:
    """A future that calls ``wait`` when it is given a value, and one of what that returns or raises.

    Only an error that comes out of a callback is one for C++, too: DistributedDataParallel takes what
    ``Future.set_exception`` stores for a tensor.
    """
    start: Future = torch.futures.Future()
    return start, start.then(lambda _: wait())


@functools.cache
def _script() -> Any:
    return torch.jit.CompilationUnit(_SCRIPT)


def of_tensor_list(future: Future, tensors: Sequence[torch.Tensor]) -> Future:
    """A future of the tensors that is over when ``future`` is, and whose value C++ knows as a list of tensors.

    No thread waits: TorchScript goes on with the function when the future is over.
    """
    typed: Future = _script().start(future, list(tensors))
    return typed


def wait_here(wait: Wait) -> Future:
    """A future of what ``wait`` returns or raises, which it does at once."""
    start, future = _future_of(wait)
    start.set_result(None)
    return future


def wait_apart(wait: Wait) -> Future:
    """A future of what ``wait`` returns or raises, in a thread of its own: it may take longer than what comes later."""
    start, future = _future_of(wait)
    start_thread(start.set_result, None)
    return future


class Waiter:
    """Waits for operations in a thread, one after the other, as those of one process set end.

    Role: owned by whoever starts the operations; the thread starts with the first future and sleeps between them.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Future | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._inner: Waiter | None = None
        self._lock = threading.Lock()
        _closable.add(self)

    def put(self, wait: Wait) -> Future:
        """A future of what ``wait`` returns or raises."""
        with self._lock:
            # What is chained to a future may start an operation and wait for it: this thread cannot do both.
            if threading.current_thread() is self._thread:
                self._inner = self._inner or Waiter()
                return self._inner.put(wait)
            if self._thread is None:
                self._thread = start_thread(self._run)
        start, future = _future_of(wait)
        self._queue.put(start)
        return future

    def close(self) -> None:
        """Let the thread end, once it has done what it was given."""
        with self._lock:
            thread, self._thread = self._thread, None
            inner, self._inner = self._inner, None
        if thread is not None:
            self._queue.put(None)
        if inner is not None:
            inner.close()

    def _run(self) -> None:
        while (start := self._queue.get()) is not None:
            start.set_result(None)
            del start  # or it would keep the tensors until the next one comes


class Finisher:
    """Calls functions in a thread, one after the other. Destructors may give it some, so :meth:`put` takes no lock.

    Role: owned by whoever starts the operations, which calls :meth:`begin` before there is anything to finish.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begun = False
        _closable.add(self)

    def begin(self) -> None:
        """Let the thread run."""
        if not self._begun:
            self._begun = True
            start_thread(self._run)

    def put(self, finish: Callable[[], None]) -> None:
        """Call ``finish`` in the thread, if there is one."""
        if self._begun:
            self._queue.put(finish)

    def close(self) -> None:
        """Let the thread end, once it has done what it was given."""
        if self._begun:
            self._begun = False
            self._queue.put(None)

    def _run(self) -> None:
        while (finish := self._queue.get()) is not None:
            finish()
            del finish  # or it would keep the tensors until the next one comes
