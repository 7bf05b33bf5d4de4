"""The work objects that torch.distributed's functions return for operations in flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from horocache.errors import HorocacheError, MismatchError, StallError

from ..compile.dynamo import untraced
from .future_threads import Future, of_tensor_list, wait_apart, wait_here
from .stream_order import NO_ORDER, StreamOrder

if TYPE_CHECKING:
    from .dispatch import GroupCalls

Store = Callable[[Any], None]
_GROUPS_LIMIT = timedelta(0)  # C++ passes this if the caller sets no limit: the group's applies
_LONGEST_S = 1e9  # the longest limit in seconds


def seconds_of(timeout: timedelta) -> float:
    """Convert a limit to seconds; a caller without a limit may pass the greatest timedelta, which is capped."""
    return min(timeout.total_seconds(), _LONGEST_S)


def _devices_of(tensors: Sequence[torch.Tensor]) -> list[torch.device]:
    return list({tensor.device for tensor in tensors if not tensor.is_cpu})


@untraced
class OperationWork(dist.Work):
    """One operation of a group. Its tensors must not be used before it is over.

    An operation on a device is over here when it has been launched. :meth:`wait` makes the current stream wait for it.

    Role: made by the group for the caller of the operation; any thread may wait.

    Args:
        calls: submits the group's operations.
        handle: the core's handle.
        outputs: the tensors that hold the result when the operation is over.
        store: stores the core's answer in them; None if the core writes to them itself.
        limit_s: seconds to wait if the caller sets no limit; below 0 only the core's limits apply.
        order: of the device's streams; None for an operation on the CPU.
        source: for a message, the rank in the group that sends it; None for a collective.
    """

    def __init__(
        self,
        calls: GroupCalls,
        handle: int,
        outputs: Sequence[torch.Tensor],
        store: Store | None,
        limit_s: float,
        order: StreamOrder | None,
        source: int | None = None,
    ) -> None:
        dist.Work.__init__(self)
        self._over = False
        self._calls = calls
        self._handle = handle
        self._outputs = outputs
        self._store = store
        self._limit_s = limit_s
        self._order = order
        self._source = source
        self._number = calls.order.calls
        self._error: BaseException | None = None
        self._future: Future | None = None
        self._lock = threading.Lock()  # held by the thread that waits

    def wait(self, timeout: timedelta = _GROUPS_LIMIT) -> bool:
        """Wait until the operation is over. Returns True.

        Args:
            timeout: how long to wait; by default the group's limit.

        Raises:
            StallError: the operation is not over in time; it goes on, and may be waited for again.
            MismatchError, PeerLostError, StallError, ShutDownError, AbortedError: the operation failed.
        """
        limit_s = self._limit_s if timeout == _GROUPS_LIMIT else seconds_of(timeout)
        return self.wait_until(time.monotonic() + limit_s, limit_s)

    def wait_until(self, end: float, limit_s: float) -> bool:
        """Wait as :meth:`wait` does.

        Args:
            end: how long to wait, as a time of ``time.monotonic()``.
            limit_s: the limit that a message names, in seconds. Below 0: only the core's limits apply.
        """
        if not self._over:
            self._wait(end, limit_s)
        if self._error is not None:
            raise self._error
        if self._source is None:
            self._calls.finish_orphans_before(self._number)
        if self._order is not None:
            self._order.wait()
        return True

    def _wait(self, end: float, limit_s: float) -> None:
        def left_s() -> float:
            return -1.0 if limit_s < 0 else max(0.0, end - time.monotonic())

        if not self._lock.acquire(timeout=left_s()):
            raise self._late(limit_s, "another thread waits for it, too")
        try:
            if not self._over:
                self._finish(left_s(), limit_s)
        finally:
            self._lock.release()

    def _finish(self, left_s: float, limit_s: float) -> None:
        try:
            with self._order or NO_ORDER:
                self._keep(self._calls.runtime.wait(self._handle, left_s))
        except TimeoutError as late:
            raise self._late(limit_s, str(late)) from late
        except HorocacheError as error:
            self._error = error
            if isinstance(error, MismatchError) and self._source is None:
                self._calls.mismatch(self._number)
        self._over = True
        self._store = None

    def _keep(self, answer: Any) -> None:
        if self._store is None:
            return
        try:
            self._store(answer)
        except Exception as error:  # raised in every thread that waits
            self._error = error

    def _late(self, limit_s: float, why: str) -> StallError:
        return StallError(
            f"an operation of {self._calls.description} is not over after {limit_s:g} s: {why}. It goes on. Raise the "
            "timeout of wait(), of new_group() or of init_process_group() if that is too short."
        )

    def is_completed(self) -> bool:
        """Return True if the operation is over, with or without an error.

        On a device it has then been launched, and the current stream waits for it.
        """
        if not self._over and self._lock.acquire(blocking=False):
            try:
                if not self._over and self._calls.runtime.poll(self._handle):
                    self._finish(-1.0, -1.0)
            finally:
                self._lock.release()
        if self._over and self._error is None and self._order is not None:
            self._order.wait()
        return self._over

    def is_success(self) -> bool:
        """Return True if the operation is over and succeeded."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error that the operation ended with; None if it succeeded or is not over."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors with the result."""
        return list(self._outputs)

    def synchronize(self) -> None:
        """Wait until the operation is over, with the group's limit; raises the errors of :meth:`wait`."""
        self.wait()

    def source_rank(self) -> int:
        """Return the rank in the group that sent a received message; -1 for other operations."""
        return -1 if self._source is None else self._source

    _source_rank = source_rank

    def get_future(self) -> Future:
        """Return a future of the list of result tensors. Its errors are RuntimeErrors with horocache's text."""
        if self._future is None:
            if self.is_completed():
                put = wait_here
            elif self._source is None:
                put = self._calls.waiter.put
            else:  # messages complete in any order
                put = wait_apart
            future = put(self._wait_for_result, _devices_of(self._outputs))
            # For half-precision buckets, DDP's FP16_COMPRESS requires a future whose value is a list of tensors in C++.
            halves = all(tensor.dtype is torch.float16 and tensor.is_cpu for tensor in self._outputs)
            self._future = of_tensor_list(future, self._outputs) if halves and self._outputs else future
        return self._future

    def _wait_for_result(self) -> list[torch.Tensor]:
        # For a device, torch makes the future's users wait for what is then the current stream.
        self.wait()
        return self.result()

    def __del__(self) -> None:
        if not getattr(self, "_over", True):
            number = self._number if self._source is None else None
            self._calls.adopt(self._handle, self._store, self._order, number)


@untraced
class JointWork(dist.Work):
    """Several operations as one work object.

    Role: made by the group for the caller of the operations; any thread may wait.
    """

    def __init__(self, works: Sequence[Any]) -> None:
        dist.Work.__init__(self)
        self._works = list(works)

    def wait(self, timeout: timedelta = _GROUPS_LIMIT) -> bool:
        """Wait for all operations, also if some fail; then raise the error of the first one that failed.

        Args:
            timeout: how long to wait for all of them together; by default the group's limit for each. Below 0: no limit
                but the core's.

        Raises:
            StallError: an operation is not over in time; it goes on.
        """
        limit_s = seconds_of(timeout)
        end = time.monotonic() + limit_s
        first: Exception | None = None
        for work in self._works:
            try:
                if timeout == _GROUPS_LIMIT:
                    work.wait()
                else:
                    work.wait_until(end, limit_s)
            except Exception as error:
                first = error if first is None else first
        try:
            if first is not None:
                raise first
        finally:
            del first  # which refers to this frame
        return True

    def is_completed(self) -> bool:
        """Return True if all operations are over."""
        return all([work.is_completed() for work in self._works])

    def result(self) -> list[torch.Tensor]:
        """Return the result tensors of all operations."""
        return [tensor for work in self._works for tensor in work.result()]

    def synchronize(self) -> None:
        """Wait until all operations are over, with the group's limit; raises the errors of :meth:`wait`."""
        self.wait()

    def get_future(self) -> Future:
        """Return a future of the result tensors of all operations."""
        futures = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(lambda _: self._wait_for_result())

    def _wait_for_result(self) -> list[torch.Tensor]:
        self.wait()
        return self.result()
