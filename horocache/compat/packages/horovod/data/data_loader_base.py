"""``horovod.data.data_loader_base``: what loaders of batches derive from."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LOOK_S = 0.1  # How often a reader that has read ahead looks whether it is still wanted.


class BaseDataLoader:
    """A loader: a subclass gives the number of batches, and the batches."""

    def __len__(self) -> int:
        """The number of batches; for the subclass to write."""
        raise NotImplementedError(f"{type(self).__name__} defines no __len__().")

    def _iterate(self) -> Iterable[Any]:
        """The batches; for the subclass to write."""
        raise NotImplementedError(f"{type(self).__name__} defines no _iterate().")

    def _process_batch(self, batch: Any) -> Any:
        """What the loop gets of a batch; for a trainer to write."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the processed batches."""
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """In front of a :class:`BaseDataLoader`: a thread reads batches ahead of the loop.

    Args:
        async_loader_queue_size: how many batches at most; 0 reads in the loop.
        args: those of the loader.
        kwargs: those of the loader.
    """

    def __init__(self, async_loader_queue_size: int = 64, *args: Any, **kwargs: Any) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self._reader: _Reader | None = None
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the thread that reads ahead, if there is one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def __iter__(self: Any) -> Iterator[Any]:
        """Iterate over the processed batches; an error of the thread is raised here, after the batches before it."""
        if self.async_loader_queue_size <= 0:
            for batch in self._iterate():
                yield self._process_batch(batch)
            return
        self.close_async_loader()
        reader = self._reader = _Reader(self._iterate, self.async_loader_queue_size)
        try:
            for batch in reader.batches():
                yield self._process_batch(batch)
        finally:
            reader.close()


class _Reader:
    """A thread that reads batches into a queue, until there are no more or it is closed."""

    def __init__(self, iterate: Callable[[], Iterable[Any]], size: int) -> None:
        self._iterate = iterate
        self._queue: queue.Queue[tuple[Any, BaseException | None, bool]] = queue.Queue(size)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="horovod.data reader", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for batch in self._iterate():
                if not self._put((batch, None, False)):
                    return
        except BaseException as caught:  # it is raised in the loop
            error = caught
        self._put((None, error, True))

    def _put(self, item: tuple[Any, BaseException | None, bool]) -> bool:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=_LOOK_S)
                return True
        return False

    def batches(self) -> Iterator[Any]:
        while True:
            batch, error, is_end = self._queue.get()
            if error is not None:
                raise error
            if is_end:
                return
            yield batch

    def close(self) -> None:
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
