"""Writes the stacks of this process's Python threads, for the reports of the core."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from horocache.core.runtime_protocol import Runtime

_MOST_CALLS = 100  # frames of a stack, as many as faulthandler writes
_END_S = 2.0  # seconds to wait for the end of the thread, which needs the GIL
_OWN_FOLDER = f"{Path(__file__).resolve().parent.parent}{os.sep}"


class StackWatch:
    """Writes all stacks into a file without a name whenever the core asks for them.

    A thread writes them, which needs the GIL. If it does not get the GIL, faulthandler writes them in a signal handler.

    Role: one per session, from ``init`` to ``shutdown``.
    """

    def __init__(self, runtime: Runtime, number: int) -> None:
        self._signal = number
        self._file = os.memfd_create("horocache-stacks", os.MFD_CLOEXEC)
        try:
            faulthandler.register(number, self._file, all_threads=True)
        except BaseException:
            os.close(self._file)
            raise
        self._ask, self._answer = os.eventfd(0, os.EFD_CLOEXEC), os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._files = {descriptor: _identity(descriptor) for descriptor in (self._file, self._ask, self._answer)}
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="horocache-stacks", daemon=True)
        _start_without_signals(self._thread)
        runtime.watch_stacks(number, self._file, self._ask, self._answer, _OWN_FOLDER)

    def _serve(self) -> None:
        # The core counts threads whose name has this prefix as its own. If no descriptor is left to set the name, ranks
        # that wait for each other in TensorFlow functions are found only at the stall limit.
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("hc-stacks")
        with contextlib.suppress(OSError):  # the program has closed a descriptor
            while self._all_are_ours() and os.eventfd_read(self._ask) and not self._closed and self._all_are_ours():
                os.write(self._file, _stacks(besides=threading.get_ident()).encode(errors="backslashreplace"))
                os.eventfd_write(self._answer, 1)

    def _all_are_ours(self) -> bool:
        return all(_identity(descriptor) == file for descriptor, file in self._files.items())

    def close(self) -> None:
        """Release everything; after the core has stopped, or in a child of fork(), where neither core nor thread runs.

        Descriptors that the program has closed, and perhaps opened again as files of its own, are left alone. If
        ``_ask`` is one of them, the thread cannot be woken any more, and ends with the process.
        """
        faulthandler.unregister(self._signal)
        self._closed = True
        ours = [descriptor for descriptor, file in self._files.items() if _identity(descriptor) == file]
        if self._thread.is_alive() and self._ask in ours:
            os.eventfd_write(self._ask, 1)
            self._thread.join(_END_S)
        for descriptor in ours:
            os.close(descriptor)


def _identity(descriptor: int) -> tuple[int, int, int] | None:
    """Return the identity of the descriptor's file; None if the descriptor is not open."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mode


def _start_without_signals(thread: threading.Thread) -> None:
    # The program's own threads must get its signals. A signal in this thread would end os.eventfd_read with EINTR. The
    # thread inherits the mask of its creator, so that it never runs without the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stacks(besides: int) -> str:
    """Format all stacks but that of thread ``besides`` as faulthandler does, the main thread as the current one."""
    main = threading.main_thread().ident
    lines = []
    for thread, innermost in sys._current_frames().items():
        if thread == besides:
            continue
        kind = "Current thread" if thread == main else "Thread"
        lines.append(f"{kind} {thread:#018x} (most recent call first):")
        frame: FrameType | None = innermost
        for _ in range(_MOST_CALLS):
            if frame is None:
                break
            lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
            frame = frame.f_back
    return "\n".join(lines) + "\n"


def watch(runtime: Runtime) -> StackWatch | None:
    """Start with the signal of the knob ``stack_signal``; None if the knob is 0 or the signal cannot be used."""
    number = int(runtime.knobs()["stack_signal"][0])
    if number == 0:
        return None
    if number not in signal.valid_signals() or signal.getsignal(number) is not signal.SIG_DFL:
        why = (
            f"signal {number} has a handler already"
            if number in signal.valid_signals()
            else f"{number} is not a signal"
        )
        warnings.warn(
            f"{why}, so reports will show no stacks; choose another with HOROCACHE_STACK_SIGNAL, or 0 for none.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    try:
        return StackWatch(runtime, number)
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"signal {number} cannot be had ({error}), so reports will show no stacks.", RuntimeWarning, stacklevel=2
        )
        return None
