"""Collectives as operations of an engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from horocache import _core
from horocache.collectives.completion import follow, synchronize
from horocache.core import context
from horocache.errors import (
    AbortedError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ShutDownError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from horocache.dag.engine import Engine
    from horocache.dag.variable import Lane

_LONGEST_REASON = 400  # characters
_ENDS = (PeerLostError, ShutDownError, AbortedError, NotInitializedError)  # of the job


class Flight:
    """Counts the collectives of lanes that are under way.

    Role: owned by an engine; used by its threads.

    Attributes:
        most: the most at a time so far.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._now = 0
        self._lock = threading.Lock()
        self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


class _ThisThread(threading.local):
    input_has_failed = False


_this_thread = _ThisThread()


def input_has_failed() -> bool:
    """True in a function that starts a collective although something that it uses has failed; see Engine.collective."""
    return _this_thread.input_has_failed


class Collective:
    """The function of an engine's operation that starts a collective and ends with it.

    If something that the operation uses has failed, the collective is submitted all the same, marked as failed: other
    ranks would wait for it otherwise. They get an InputFailedError, and the operation ends with the failure itself.

    Role: made for an operation, or for several that run one after the other; called by the engine, a second time if the
    result has to be taken.
    """

    __slots__ = ("_engine", "_handle", "_instead", "_is_plain", "_lane", "_start", "_then")

    def __init__(
        self,
        engine: Engine,
        start: Callable[[], int],
        then: Callable[[Any], object] | None,
        lane: Lane | None,
        instead: Callable[[BaseException], int] | None,
    ) -> None:
        """Keep what to do.

        Args:
            engine: of the operation.
            start: starts the collective and returns its handle.
            then: gets the result, on a thread of the engine.
            lane: the collective's, whose thread waits for it; None: no thread waits.
            instead: called instead of ``start`` with a failure of something that the operation uses.
        """
        self._engine = engine
        self._start = start
        self._then = then
        self._lane = lane
        self._instead = instead
        self._is_plain = then is None and instead is None
        self._handle: int | None = None

    def __call__(self, operation: int, inherited: BaseException | None) -> None:
        """Start the collective, or take its result."""
        try:
            if self._lane is not None:
                result = self._run(self._lane, inherited)
            elif self._handle is None:
                handle = self._handle = self._begin(inherited)
                if follow(handle, self._engine.core, operation, self._is_plain):
                    self._handle = None
                return
            else:
                handle, self._handle = self._handle, None
                result = synchronize(handle)
        except Exception:
            if inherited is not None:
                raise inherited from None
            raise
        if inherited is not None:
            raise inherited
        if self._then is not None:
            self._then(result)
        self._engine.core.complete(operation, None)

    def _run(self, lane: Lane, inherited: BaseException | None) -> Any:
        if lane.stopped is not None:
            raise lane.stopped
        with self._engine.flight:
            try:
                return synchronize(self._begin(inherited))
            except MismatchError as error:
                lane.stopped = error
                raise

    def _begin(self, inherited: BaseException | None) -> int:
        if not isinstance(context.current().runtime, _core.Runtime):
            raise UnsupportedError("collectives of an engine need HOROCACHE_BINDING=native.")
        if inherited is None:
            return self._start()
        if isinstance(inherited, _ENDS):  # no rank waits for it any more
            raise inherited
        if self._instead is not None:
            return self._instead(inherited)
        _this_thread.input_has_failed = True
        try:
            return _core.with_failed_input(
                f"no data, because an operation before it failed: {told(inherited)}", self._start
            )
        finally:
            _this_thread.input_has_failed = False


def told(error: BaseException) -> str:
    """Return an exception's type and text, also if it cannot describe itself or its text is not Unicode."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text[:_LONGEST_REASON].encode("utf-8", "backslashreplace").decode()
