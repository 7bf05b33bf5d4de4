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
_Finisher = tuple[Callable[[Any, Any], Any], Any]
_NO_FINISHER = (lambda state, answer: None, None)


class Handle(int):
    """An operation in flight, which the asynchronous functions return: an int, as in Horovod.

    The operation keeps its tensors alive until :meth:`wait` or :func:`synchronize` has returned its result and a device
    that runs it is done.
    """

    __slots__ = ()

    def wait(self, timeout: float | None = None, *, block: bool = False) -> Any:
        """Wait for the operation and return its result, as :func:`synchronize` does."""
        return synchronize(self, timeout=timeout, block=block)

    def done(self) -> bool:
        """True if :meth:`wait` would return at once, as :func:`poll` tells."""
        return poll(self)

    def __repr__(self) -> str:
        """Tell whether the operation is in flight, ready for :meth:`wait`, or its result was returned."""
        try:
            state = "ready" if poll(self) else "in flight"
        except (HorocacheError, ValueError):  # no session runs, or the handle is not known, or not any more
            state = "consumed"
        return f"<handle {int(self)}, {state}>"

    __str__ = int.__repr__  # messages show the number


def _unknown(handle: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"Handle {handle} was not created or has been cleared.")


def poll(handle: int) -> bool:
    """True if :func:`synchronize` would return at once.

    That is when the operation is finished, or, if a device runs it, when the device has been given it.

    Raises:
        ValueError: the handle was never created, or has been consumed by :func:`synchronize`.
    """
    session = context.current()
    if handle in session.outcomes:
        return True
    if handle not in session.pending:
        raise _unknown(handle)
    return session.runtime.poll(handle)


def follow(handle: int, engine: Any, operation: int, may_consume: bool) -> bool:
    """Have an operation of an engine of :mod:`horocache.dag` end when that of a handle is done.

    Returns:
        True: the handle is consumed then, as ``may_consume`` allows if the result is in the operation's own tensors.
        False: the engine's operation runs again then, and must call :func:`synchronize`.

    Raises:
        InvalidArgumentError: the operation of the handle has no name of the program's.
    """
    session = context.current()
    finish, state = session.pending.get(handle, _NO_FINISHER)
    consume = may_consume and finish in finishes_many
    engine.follow(session.runtime, handle, operation, consume)
    if consume:
        del session.pending[handle]
        finish(state, None)
    return consume


def _check_seconds(timeout: float) -> None:
    """Raise InvalidArgumentError unless ``timeout`` is a number from 0 on."""
    if not isinstance(timeout, Real) or not timeout >= 0:
        raise InvalidArgumentError(f"timeout must be a number of seconds from 0 on; it is {timeout!r}.")


def synchronize(handle: int | list[int] | tuple[int, ...], *, timeout: float | None = None, block: bool = False) -> Any:
    """Wait for an asynchronous operation, consume its handle and return its result.

    For CUDA tensors that NCCL works on, it is the current stream that waits: the call returns once the device has been
    given the operation, and what the program queues on the stream from then on sees the result. A failure on the device
    after that is logged and ends the job, so that the next operation raises it.

    Args:
        handle: from one of the ``_async`` functions. A list or tuple of handles gives the list of their results: the
            call waits for all of them, then raises the first failure.
        timeout: seconds after which the call raises TimeoutError; the handle, or each handle of the list, then stays
            valid. None: only the stall knobs limit the wait.
        block: wait for the device, too, so that any stream sees the result, and a failure on the device is raised here.
            The cast that undoes a compression is only queued on the current stream.

    Raises:
        UnsupportedError: the program captures a CUDA graph on the current stream, and the result is in memory that
            horocache has allocated on the device.
        InvalidArgumentError: a handle was never created, has been consumed, or another thread waits for it; or
            ``timeout`` is not a number of seconds from 0 on.
        MismatchError, PeerLostError, StallError, ShutDownError, AbortedError: the operation failed; the handle is
        consumed.
    """
    if timeout is not None:
        _check_seconds(timeout)
    session = context.current()
    if isinstance(handle, (list, tuple)):
        return _synchronize_all(handle, timeout, block)
    # Removed first, so that a second thread that waits for the same handle does not find it.
    finisher = session.pending.pop(handle, None)
    end = None if timeout is None else time.monotonic() + timeout
    if finisher is None:
        outcome = session.outcomes.pop(handle, None) or (_failed, _unknown(handle))
        result = outcome[0](outcome[1], None)
        if block:
            _await_copies(handle, _answer_of(outcome), result, end)
        return result
    finish, state = finisher
    try:
        answer = session.runtime.wait(handle, _seconds(timeout), block)
    except HorocacheError:
        raise
    except BaseException:  # a timeout or an interrupt: the operation goes on
        session.pending[handle] = finisher
        raise
    result = finish(state, answer)
    if block:
        _await_copies(handle, answer, result, end)
    return result


def _seconds(timeout: float | None) -> float:
    """A time limit as the runtime takes it."""
    return -1.0 if timeout is None else timeout


def _left(end: float | None) -> float | None:
    """The seconds until a time limit."""
    return None if end is None else max(0.0, end - time.monotonic())


def _await_copies(handle: int, answer: Any, result: Any, end: float | None) -> None:
    """Wait until the result is there for every stream; if that is interrupted, keep it for the next call."""
    if not isinstance(answer, list):
        return
    session = context.current()
    try:
        session.runtime.await_copies(answer, _seconds(_left(end)))
    except HorocacheError:
        raise
    except BaseException:
        session.outcomes[handle] = _queued, (answer, result)
        raise


def _synchronize_all(handles: Sequence[int], timeout: float | None, block: bool) -> list[Any]:
    """:func:`synchronize` for several handles, within one timeout. One call waits for as many of them as possible.

    If the wait is interrupted, the outcomes so far are kept, so that all handles can be synchronized again.
    """
    session = context.current()
    end = None if timeout is None else time.monotonic() + timeout
    results = [] if block else _finish_alike(handles, timeout)
    if len(results) == len(handles):
        return results
    outcomes: list[_Finisher] = [(_kept, result) for result in results]
    try:
        for handle in handles[len(outcomes) :]:
            outcomes.append(_outcome(handle, end, block))
    except BaseException:
        session.outcomes.update(pair for pair in zip(handles, outcomes, strict=False) if pair[1][0] is not _refused)
        raise
    return [finish(state, None) for finish, state in outcomes]


def _outcome(handle: int, end: float | None, block: bool) -> _Finisher:
    """Wait for an operation and consume its handle; return a finisher that needs no answer.

    Raises:
        BaseException: a timeout or an interrupt; the handle stays valid.
    """
    session = context.current()
    finisher = session.pending.pop(handle, None)
    if finisher is None:
        outcome = session.outcomes.pop(handle, None) or (_refused, _unknown(handle))
        answer = _answer_of(outcome) if block else None
        if answer is None:
            return outcome
        finish, state = outcome
    else:
        finish, state = finisher
        try:
            answer = session.runtime.wait(handle, _seconds(_left(end)), block)
        except HorocacheError as error:
            return _failed, error
        except BaseException:  # the operation goes on
            session.pending[handle] = finisher
            raise
    try:
        result = finish(state, answer)
    except Exception as error:
        return _failed, error
    except BaseException:
        session.outcomes[handle] = _answered, (finish, state, answer)
        raise
    try:
        if block:
            _await_copies(handle, answer, result, end)
    except HorocacheError as error:
        return _failed, error
    return _kept, result


def _answer_of(outcome: _Finisher) -> Any:
    """Return the runtime's answer to a wait that was interrupted after it; None for other outcomes."""
    finish, state = outcome
    if finish is _queued:
        return state[0]
    return state[2] if finish is _answered else None


def _kept(result: Any, _: Any) -> Any:
    return result


def _queued(known: tuple[Any, Any], _: Any) -> Any:
    """The copies to the result are queued on the device."""
    return known[1]


def _failed(error: Exception, _: Any) -> Any:
    raise error


def _answered(known: tuple[Callable[[Any, Any], Any], Any, Any], _: Any) -> Any:
    finish, state, answer = known
    return finish(state, answer)


def _refused(error: Exception, _: Any) -> Any:
    raise error


def _finish_alike(handles: Sequence[int], timeout: float | None) -> list[Any]:
    """Wait in one call for the handles at the beginning that succeed and have the same finisher; return the results."""
    session = context.current()
    finish, _ = session.pending.get(handles[0], _NO_FINISHER) if handles else _NO_FINISHER
    if finish not in finishes_many:
        return []
    ended: list[Any] = []
    try:
        session.runtime.wait_each(tuple(handles), session.pending, finish, ended, _seconds(timeout))
    except BaseException:
        results = finishes_many[finish](ended)
        session.outcomes.update(zip(handles, ((_kept, result) for result in results), strict=False))
        raise
    return finishes_many[finish](ended)
