"""``horovod.data.data_loader_base``: base classes of data loaders."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LOOK_S = 0.1  # Seconds after which a reader with a full queue checks whether it has been closed.


class BaseDataLoader:
    """Base of data loaders; a subclass implements ``__len__`` and ``_iterate``."""

    def __len__(self) -> int:
        """Return the number of batches; a subclass implements it."""
        raise NotImplementedError(f"{type(self).__name__} defines no __len__().")

    def _iterate(self) -> Iterable[Any]:
        """Yield the batches; a subclass implements it."""
        raise NotImplementedError(f"{type(self).__name__} defines no _iterate().")

    def _process_batch(self, batch: Any) -> Any:
        """Return the form of a batch that the loop gets: the batch itself, unless a trainer overrides this method."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the processed batches."""
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Makes a thread read batches ahead of the loop; a class lists it before a :class:`BaseDataLoader` as a base.

    Args:
        async_loader_queue_size: the number of batches that the thread may read ahead; 0 reads in the loop itself.
        args: positional arguments of the loader.
        kwargs: keyword arguments of the loader.
    """

    def __init__(self, async_loader_queue_size: int = 64, *args: Any, **kwargs: Any) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self._reader: _Reader | None = None
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the thread that reads ahead, if one runs."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def __iter__(self: Any) -> Iterator[Any]:
        """Iterate over the processed batches. An error of the thread is raised here, after the batches before it."""
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
    """A thread that reads batches into a queue, until all batches are read or the reader is closed."""

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
        except BaseException as caught:  # batches() raises it in the loop
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
