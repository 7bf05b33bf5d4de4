"""What torch.distributed's functions return for an operation that is under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from horocache.torch.compile.dynamo import untraced
from horocache.torch.distributed.future_threads import Future, of_tensor_list, wait_apart, wait_here

import torch
import torch.distributed as dist
from horocache.errors import HorocacheError, MismatchError, StallError

if TYPE_CHECKING:
    from horocache.torch.distributed.dispatch import GroupCalls

Store = Callable[[Any], None]
_GROUPS_LIMIT = timedelta(0)  # what C++ passes where it sets no limit of its own
_LONGEST_S = 1e9


def seconds_of(timeout: timedelta) -> float:
    """A limit as the core takes it: some have none, which they say with the greatest timedelta."""
    return min(timeout.total_seconds(), _LONGEST_S)


@untraced
class OperationWork(dist.Work):
    """One operation of a group. Its tensors must not be used before it is over.

    Role: made by the group and given to whoever called it; any thread may wait.

    Args:
        calls: the operations of the group.
        handle: the core's.
        outputs: the tensors that hold the result in the end.
        store: puts the core's answer into them, where the core has not done that itself.
        limit_s: seconds to wait where the caller sets no limit; below 0 the core's limits alone apply.
        source: for a message, the rank in the group that sends it; None for a collective.
    """

    def __init__(
        self,
        calls: GroupCalls,
        handle: int,
        outputs: Sequence[torch.Tensor],
        store: Store | None,
        limit_s: float,
        source: int | None = None,
    ) -> None:
        dist.Work.__init__(self)
        self._over = False
        self._calls = calls
        self._handle = handle
        self._outputs = outputs
        self._store = store
        self._limit_s = limit_s
        self._source = source
        self._number = calls.order.calls
        self._error: BaseException | None = None
        self._future: Future | None = None
        self._lock = threading.Lock()  # held by the thread that waits

    def wait(self, timeout: timedelta = _GROUPS_LIMIT) -> bool:
        """Wait until the operation is over. Returns True.

        Args:
            timeout: how long; by default as long as the group allows.

        Raises:
            StallError: it is not over by then; it goes on. MismatchError, PeerLostError, StallError, ShutDownError,
                AbortedError: it failed.
        """
        if not self._over:
            self._wait(self._limit_s if timeout == _GROUPS_LIMIT else seconds_of(timeout))
        if self._error is not None:
            raise self._error
        return True

    def _wait(self, limit_s: float) -> None:
        began = 0.0 if limit_s < 0 else time.monotonic()
        if not self._lock.acquire(timeout=-1 if limit_s < 0 else limit_s):
            raise self._late(limit_s, "another thread waits for it, too")
        try:
            if not self._over:
                left_s = -1.0 if limit_s < 0 else max(0.0, limit_s - (time.monotonic() - began))
                self._finish(left_s, limit_s)
                if self._source is None and self._error is None:
                    self._calls.finish_orphans_before(self._number)
        finally:
            self._lock.release()

    def _finish(self, left_s: float, limit_s: float) -> None:
        try:
            answer = self._calls.runtime.wait(self._handle, left_s)
        except TimeoutError as late:
            raise self._late(limit_s, str(late)) from late
        except HorocacheError as error:
            self._error = error
            if isinstance(error, MismatchError) and self._source is None:
                self._calls.mismatch(self._number)
        else:
            self._keep(answer)
        self._over = True
        self._store = None

    def _keep(self, answer: Any) -> None:
        if self._store is None:
            return
        try:
            self._store(answer)
        except Exception as error:  # for everybody who waits
            self._error = error

    def _late(self, limit_s: float, why: str) -> StallError:
        return StallError(
            f"an operation of {self._calls.description} is not over after {limit_s:g} s: {why}. It goes on. Raise the "
            "timeout of wait(), of new_group() or of init_process_group() if that is too short."
        )

    def is_completed(self) -> bool:
        """Whether the operation is over, well or not."""
        if not self._over and self._lock.acquire(blocking=False):
            try:
                if not self._over and self._calls.runtime.poll(self._handle):
                    self._finish(-1.0, -1.0)
            finally:
                self._lock.release()
        return self._over

    def is_success(self) -> bool:
        """Whether the operation is over and went well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The error that the operation ended with."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors with the result."""
        return list(self._outputs)

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def source_rank(self) -> int:
        """For a message that was received, the rank in the group that sent it; -1 for others."""
        return -1 if self._source is None else self._source

    _source_rank = source_rank

    def get_future(self) -> Future:
        """A future of the list of tensors with the result. Its errors are RuntimeErrors, with the text of ours."""
        if self._future is None:
            if self.is_completed():
                put = wait_here
            elif self._source is None:
                put = self._calls.waiter.put
            else:  # messages come in any order
                put = wait_apart
            future = put(self._wait_for_result)
            # DDP's FP16_COMPRESS takes nothing but a list of tensors from a reduction of its half-precision buckets.
            halves = all(tensor.dtype is torch.float16 for tensor in self._outputs)
            self._future = of_tensor_list(future, self._outputs) if halves and self._outputs else future
        return self._future

    def _wait_for_result(self) -> list[torch.Tensor]:
        self.wait()
        return self.result()

    def __del__(self) -> None:
        if not getattr(self, "_over", True):
            self._calls.adopt(self._handle, self._store, self._number if self._source is None else None)


@untraced
class JointWork(dist.Work):
    """Several operations as one.

    Role: as :class:`OperationWork`.
    """

    def __init__(self, works: Sequence[Any]) -> None:
        dist.Work.__init__(self)
        self._works = list(works)

    def wait(self, timeout: timedelta = _GROUPS_LIMIT) -> bool:
        """Wait until all are over; raises what the first one that failed raises."""
        return all([work.wait(timeout) for work in self._works])

    def is_completed(self) -> bool:
        """Whether all are over."""
        return all([work.is_completed() for work in self._works])

    def result(self) -> list[torch.Tensor]:
        """The tensors of all."""
        return [tensor for work in self._works for tensor in work.result()]

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def get_future(self) -> Future:
        """A future of the tensors of all."""
        futures = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(lambda _: self._wait_for_result())

    def _wait_for_result(self) -> list[torch.Tensor]:
        self.wait()
        return self.result()
