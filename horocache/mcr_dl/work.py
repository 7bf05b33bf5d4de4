"""Handles of operations in flight."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from numbers import Real
from typing import TYPE_CHECKING, Any

from horocache.errors import HorocacheError, InvalidArgumentError, MismatchError

if TYPE_CHECKING:
    from horocache.mcr_dl.call_names import Sequence, Ticket
    from horocache.mcr_dl.session import Route

# Stores the core's answer in the caller's tensors: (result, answer) -> anything.
Store = Callable[[Any, Any], object]


def seconds_of(timeout: float | timedelta) -> float:
    """Return a time limit in seconds.

    Raises:
        InvalidArgumentError: ``timeout`` is not a number of seconds from 0 on or a timedelta.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if not isinstance(seconds, Real) or isinstance(seconds, bool) or not 0 <= seconds < math.inf:
        raise InvalidArgumentError(f"timeout must be a number of seconds from 0 on or a timedelta; it is {timeout!r}.")
    return min(float(seconds), threading.TIMEOUT_MAX)


class Work:
    """An operation in flight. Its tensors must not be used before it is over.

    The operation goes on if the handle is dropped: its result is stored all the same, at the latest by
    :func:`~horocache.mcr_dl.synchronize`. On a CUDA device an operation of NCCL is over here when it has been launched;
    the current stream then waits for it.

    Role: made for the caller of the operation; any thread may wait.

    Args:
        route: the backends and the group.
        operation: the core's handle, or the ticket of a request in the backlog.
        store: stores the core's answer in ``result``.
        result: the tensors that have the result when the operation is over; None on a rank that gets none.
        sequence: the sequence that the call is in; None if it has a name of its own, or is a message.
        number: its number there.
    """

    __slots__ = (
        "_error",
        "_lock",
        "_number",
        "_operation",
        "_result",
        "_sequence",
        "_store",
        "over",
        "route",
        "seen",
    )

    def __init__(
        self,
        route: Route,
        operation: int | Ticket,
        store: Store,
        result: Any,
        sequence: Sequence | None = None,
        number: int = 0,
    ) -> None:
        self.over = False
        self.route = route
        self.seen = False  # True if the caller has got the error
        self._operation = operation
        self._store = store
        self._result = result
        self._sequence = sequence
        self._number = number
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # held by the thread that waits

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until the operation is over. Returns True, a second time at once.

        Args:
            timeout: seconds, or a timedelta, after which TimeoutError is raised; the operation goes on, and the handle
                stays valid. None: only the stall knobs of horocache limit the wait.

        Raises:
            TimeoutError: the operation is not over in time. MismatchError, PeerLostError, StallError, ShutDownError,
                AbortedError: the operation failed; a second wait raises the same. InvalidArgumentError: ``timeout`` is
                not a time; or the result is not of the size of the tensor that was given for it.
        """
        if not self.over:
            if timeout is not None:
                self._wait(seconds_of(timeout))
            else:
                with self._lock:
                    if not self.over:
                        self._finish(None)
        if self._error is not None:
            self.seen = True
            raise self._error
        return True

    def is_completed(self) -> bool:
        """True if the operation is over, with or without an error; then its result is in its tensors."""
        if not self.over and self._lock.acquire(blocking=False):
            try:
                if not self.over and self._ended():
                    self._finish(None)
            finally:
                self._lock.release()
        return self.over

    def exception(self) -> BaseException | None:
        """Return the error with which the operation ended; None if it succeeded or is not over."""
        return self._error

    def result(self) -> Any:
        """Wait for the operation, as :meth:`wait` does, and return the tensor or the tensors with its result.

        None on a rank that gets no result.
        """
        self.wait()
        return self._result

    def __repr__(self) -> str:
        """Tell the backends, and whether the operation is over."""
        state = "failed" if self._error is not None else "over" if self.over else "in flight"
        return f"<mcr_dl.Work on {self.route.label}, {state}>"

    # ---- by the waiting thread

    def _ended(self) -> bool:
        if not isinstance(self._operation, int) and not self._operation.filled():
            return False
        try:
            return self.route.session.runtime.poll(self._handle(None))
        except (HorocacheError, ValueError):  # _finish gets the same error
            return True

    def _wait(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        if not self._lock.acquire(timeout=limit_s):
            raise TimeoutError(f"another thread has waited for the operation for longer than {limit_s:g} s")
        try:
            if not self.over:
                self._finish(end)
        finally:
            self._lock.release()

    def _handle(self, end: float | None) -> int:
        if not isinstance(self._operation, int):
            self._operation = self._operation.handle(None if end is None else max(0.0, end - time.monotonic()))
        return self._operation

    def _finish(self, end: float | None) -> None:
        try:
            handle = self._operation if type(self._operation) is int else self._handle(end)
            if end is None:
                answer = self.route.session.runtime.wait(handle)
            else:
                answer = self.route.session.runtime.wait(handle, max(0.0, end - time.monotonic()))
        except (HorocacheError, ValueError) as error:
            if self._sequence is not None and isinstance(error, MismatchError):
                self._sequence.disagreed(self._number)
            self._end(error)
            return
        try:
            self._store(self._result, answer)
        except Exception as error:  # raised in every thread that waits
            self._end(error)
        else:
            self.over = True
            self.route.session.in_flight.pop(self, None)

    def _end(self, error: BaseException) -> None:
        self._error = error
        self.over = True
        self.route.session.in_flight.pop(self, None)


class JointWork:
    """Several operations of one call as one handle, with the methods of :class:`Work`.

    Args:
        works: the operations.
        result: what :meth:`result` returns.
    """

    def __init__(self, works: Iterable[Work], result: Any) -> None:
        self._works = list(works)
        self._result = result

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until all operations are over, also if one fails; then raise the error of the first that failed.

        Args:
            timeout: seconds for all of them together, or a timedelta; None: only the stall knobs limit the wait.
        """
        end = None if timeout is None else time.monotonic() + seconds_of(timeout)
        errors: list[Exception] = []
        for work in self._works:
            try:
                work.wait(None if end is None else max(0.0, end - time.monotonic()))
            except TimeoutError:
                raise
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return True

    def is_completed(self) -> bool:
        """True if all operations are over."""
        return all([work.is_completed() for work in self._works])

    def exception(self) -> BaseException | None:
        """Return the error of the first operation that failed; None if none did."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> Any:
        """Wait for all operations and return the tensors with the result."""
        self.wait()
        return self._result
