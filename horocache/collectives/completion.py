"""Completion of operations: ``poll`` and ``synchronize``, for the handles of asynchronous operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from horocache.core import context
from horocache.errors import HorocacheError, InvalidArgumentError

# Maps a function that finishes one operation to one that finishes many at once: it takes the list of their states and
# returns the list of their results.
finishes_many: dict[Callable[[Any, Any], Any], Callable[[list[Any]], list[Any]]] = {}
_NO_FINISHER = (lambda state, answer: None, None)


def poll(handle: int) -> bool:
    """True if the operation is finished, so that :func:`synchronize` would return at once.

    Raises:
        ValueError: the handle was never created, or has been consumed by :func:`synchronize`.
    """
    session = context.current()
    if handle not in session.pending:
        raise InvalidArgumentError(f"Handle {handle} was not created or has been cleared.")
    return session.runtime.poll(handle)


def _check_seconds(timeout: float) -> None:
    """Raise InvalidArgumentError unless ``timeout`` is a number from 0 on."""
    if not isinstance(timeout, Real) or not timeout >= 0:
        raise InvalidArgumentError(f"timeout must be a number of seconds from 0 on; it is {timeout!r}.")


def synchronize(handle: int | list[int] | tuple[int, ...], *, timeout: float | None = None) -> Any:
    """Wait for an asynchronous operation, consume its handle and return its result.

    Args:
        handle: from one of the ``_async`` functions. A handle that is unknown or consumed, or for which another thread
            waits, gives None, as in Horovod. A list or tuple of handles gives the list of their results: the call waits
            for all of them, then raises the first failure.
        timeout: seconds after which the call raises TimeoutError; the handle, or each handle that is not consumed yet,
            then stays valid. None: only the stall knobs limit the wait.

    Raises:
        InvalidArgumentError: ``timeout`` is not a number of seconds from 0 on.
        MismatchError, PeerLostError, StallError, ShutDownError, AbortedError: the operation failed; the handle is
        consumed.
    """
    if timeout is not None:
        _check_seconds(timeout)
    session = context.current()
    if isinstance(handle, (list, tuple)):
        return _synchronize_all(handle, timeout)
    # Removed first, so that a second thread that waits for the same handle does not find it.
    finisher = session.pending.pop(handle, None)
    if finisher is None:
        return None
    try:
        answer = session.runtime.wait(handle) if timeout is None else session.runtime.wait(handle, timeout)
    except HorocacheError:
        raise
    except BaseException:  # a timeout or an interrupt: the operation goes on
        session.pending[handle] = finisher
        raise
    finish, state = finisher
    return finish(state, answer)


def _synchronize_all(handles: Sequence[int], timeout: float | None) -> list[Any]:
    """:func:`synchronize` for several handles, within one timeout. One call waits for as many of them as possible."""
    session = context.current()
    pending, wait = session.pending, session.runtime.wait
    end = None if timeout is None else time.monotonic() + timeout
    results = _finish_alike(handles, timeout)
    failure = None
    for handle in handles[len(results) :]:
        finisher = pending.pop(handle, None)
        if finisher is None:
            results.append(None)
            continue
        try:
            answer = wait(handle) if end is None else wait(handle, max(0.0, end - time.monotonic()))
        except HorocacheError as error:
            failure = failure or error
            continue
        except BaseException:
            pending[handle] = finisher
            raise
        finish, state = finisher
        results.append(finish(state, answer))
    if failure is not None:
        raise failure
    return results


def _finish_alike(handles: Sequence[int], timeout: float | None) -> list[Any]:
    """Wait in one call for the handles at the beginning that succeed and have the same finisher."""
    session = context.current()
    finish, _ = session.pending.get(handles[0], _NO_FINISHER) if handles else _NO_FINISHER
    if finish not in finishes_many:
        return []
    ended: list[Any] = []
    results: list[Any] = []
    try:
        session.runtime.wait_each(tuple(handles), session.pending, finish, ended, -1.0 if timeout is None else timeout)
    finally:
        results = finishes_many[finish](ended)
    return results
