"""Threads that complete torch's futures: callers wait for a future in C++ and cannot drive horocache's progress."""

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
Devices: TypeAlias = Sequence[torch.device]  # without the CPU, where results may have tensors, too

_GRACE_S = 2.0  # seconds that all threads together have to end at exit
# In C++, the value of a future made in Python is always a Python object; that of a TorchScript future has a C++ type.
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
    # Python stops daemon threads at any point; a thread that is then in torch's C++ code crashes the process.
    until = time.monotonic() + _GRACE_S
    for each in list(_closable):
        each.close()
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))


call_at_exit(_end_threads)


def _future_of(wait: Wait, devices: Devices) -> tuple[Future, Future]:
    """Return a future that calls ``wait`` when it gets a value, and a future of the result or error of ``wait``.

    C++ recognizes an error only if a callback raised it: DistributedDataParallel treats an error that
    ``Future.set_exception`` stores as a tensor.
    """
    start: Future = torch.futures.Future(devices=list(devices))
    return start, start.then(lambda _: wait())


@functools.cache
def _script() -> Any:
    return torch.jit.CompilationUnit(_SCRIPT)


def of_tensor_list(future: Future, tensors: Sequence[torch.Tensor]) -> Future:
    """Return a future of the tensors that completes with ``future``, and whose value is a list of tensors in C++.

    No thread waits: TorchScript resumes the function when ``future`` completes.
    """
    typed: Future = _script().start(future, list(tensors))
    return typed


def wait_here(wait: Wait, devices: Devices) -> Future:
    """Call ``wait`` at once, and return a future of its result or error."""
    start, future = _future_of(wait, devices)
    start.set_result(None)
    return future


def wait_apart(wait: Wait, devices: Devices) -> Future:
    """Call ``wait`` in its own thread, as later operations may end first; return a future of its result or error."""
    start, future = _future_of(wait, devices)
    start_thread(start.set_result, None)
    return future


class Waiter:
    """Waits for operations in a thread, one after the other: operations of one process set end in order.

    Role: owned by the object that starts the operations. The thread starts with the first future and sleeps between
    operations.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Future | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._inner: Waiter | None = None
        self._lock = threading.Lock()
        _closable.add(self)

    def put(self, wait: Wait, devices: Devices) -> Future:
        """Queue ``wait`` for the thread; return a future of its result or error."""
        with self._lock:
            # A callback on a future runs in this thread. If it starts an operation and waits for it, another thread
            # must complete that operation's future.
            if threading.current_thread() is self._thread:
                self._inner = self._inner or Waiter()
                return self._inner.put(wait, devices)
            if self._thread is None:
                self._thread = start_thread(self._run)
        start, future = _future_of(wait, devices)
        self._queue.put(start)
        return future

    def close(self) -> None:
        """Let the thread end when its queue is empty."""
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
            del start  # otherwise it would keep the tensors alive until the next item comes


class Finisher:
    """Calls functions in a thread, one after the other. Destructors may call :meth:`put`, so it takes no lock.

    Role: owned by the object that starts the operations, which calls :meth:`begin` before the first :meth:`put`.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begun = False
        _closable.add(self)

    def begin(self) -> None:
        """Start the thread, unless it runs."""
        if not self._begun:
            self._begun = True
            start_thread(self._run)

    def put(self, finish: Callable[[], None]) -> None:
        """Call ``finish`` in the thread, if there is one."""
        if self._begun:
            self._queue.put(finish)

    def close(self) -> None:
        """Let the thread end when its queue is empty."""
        if self._begun:
            self._begun = False
            self._queue.put(None)

    def _run(self) -> None:
        while (finish := self._queue.get()) is not None:
            finish()
            del finish  # otherwise it would keep the tensors alive until the next item comes
