"""Informs the other ranks that an exception is ending this process, before anything that may delay its end.

When an exception ends a program, Python first shows it, then waits for threads, then calls atexit handlers. Each step
may take long, and the other ranks would wait meanwhile. So three places look for the exception, in this order:
``sys.excepthook``; the moment before Python waits for threads, for programs that replace the hook; and an atexit
handler. ``sys.exit(7)`` and ``exit(7)`` reach no hook. Instead they raise :class:`_Exit`, which informs the other ranks
when the interpreter reads its code. ``raise SystemExit(7)`` is not noticed here: the other ranks learn its code when
the process calls exit(), see ``Runtime.stop_with_process``.
"""

from __future__ import annotations

import _sitebuiltins
import contextlib
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

Tell = Callable[[str], None]


class _Watch:
    """The function that informs the other ranks, and the functions that this module replaces. One instance, below."""

    def __init__(self) -> None:
        self.tell: Tell | None = None
        self.hook: Any = sys.excepthook  # the hook that was installed before
        self.exit: Any = sys.exit
        self.quit: Any = _sitebuiltins.Quitter.__call__  # the method that exit() and quit() call


_watch = _Watch()


def watch(tell: Tell) -> None:
    """From now on, call ``tell`` with the reason when an exception ends this process. To be called once."""
    _watch.tell = tell
    _watch.hook, sys.excepthook = sys.excepthook, _excepthook
    _watch.exit, sys.exit = sys.exit, _exit
    _watch.quit, _sitebuiltins.Quitter.__call__ = _sitebuiltins.Quitter.__call__, _quit  # type: ignore[method-assign]
    register: Callable[[Callable[[], None]], None] | None = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):  # Python has waited for its threads already
            register(tell_uncaught)


def tell_uncaught() -> None:
    """Report the exception that Python has shown last; called when the interpreter ends."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1"):  # an interactive prompt continues after an error
        _tell(f"it raised {type(error).__name__}: {error}")


def _tell(why: str) -> None:
    if _watch.tell is not None:
        _watch.tell(why)


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # A program may call the hook to show an error and continue. An interactive prompt continues, too, as does python -i
    # after the program.
    if _interpreter_calls(sys._getframe()) and not hasattr(sys, "ps1") and not sys.flags.inspect:
        _tell(f"it raised {kind.__name__}: {error}")
    _watch.hook(kind, error, trace)


def _interpreter_calls(frame: FrameType) -> bool:
    """True if the interpreter called the hook: the outermost frame is this hook, or a user's that calls it."""
    while frame.f_back is not None:
        frame = frame.f_back
    is_hook = frame.f_code in (_excepthook.__code__, getattr(sys.excepthook, "__code__", None))
    return is_hook and threading.current_thread() is threading.main_thread()


class _Exit(SystemExit):
    """The exception of ``sys.exit``; to a program it looks like SystemExit."""

    @property
    def code(self) -> Any:
        """The argument of ``sys.exit``. The interpreter reads it without a frame of Python when it ends the process."""
        code = self.__dict__.get("code", self.args[0] if len(self.args) == 1 else self.args or None)
        in_program = sys._getframe().f_back is not None
        if code not in (None, 0) and not in_program and threading.current_thread() is threading.main_thread():
            _tell(f"it called sys.exit({code!r})")
        return code

    @code.setter
    def code(self, code: Any) -> None:
        self.__dict__["code"] = code

    def __reduce__(self) -> tuple[Any, ...]:
        return SystemExit, self.args


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"
_Exit.__module__ = "builtins"


def _exit(status: Any = None, /) -> NoReturn:
    if isinstance(status, SystemExit):
        raise status
    raise _Exit(*status) if isinstance(status, tuple) else _Exit() if status is None else _Exit(status)


def _quit(self: Any, code: Any = None) -> NoReturn:
    with contextlib.suppress(SystemExit):
        _watch.quit(self, code)
    _exit(code)
