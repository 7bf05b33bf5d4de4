"""The stacks of this process's Python threads, for the reports of the core."""

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

_MOST_CALLS = 100  # as many as faulthandler writes
_END_S = 2.0  # for the thread to end; it needs the interpreter's lock
_OWN_FOLDER = f"{Path(__file__).resolve().parent.parent}{os.sep}"


class StackWatch:
    """Writes all stacks into a file without a name whenever the core asks for them.

    A thread does, which needs the interpreter's lock; where it does not get it, faulthandler does, at a signal.

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
        # The core counts threads of this prefix as its own. Without a descriptor to say so, ranks that wait for each
        # other in TensorFlow functions are found at the stall limit.
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("hc-stacks")
        with contextlib.suppress(OSError):  # the program has closed a descriptor
            while self._all_are_ours() and os.eventfd_read(self._ask) and not self._closed and self._all_are_ours():
                os.write(self._file, _stacks(besides=threading.get_ident()).encode(errors="backslashreplace"))
                os.eventfd_write(self._answer, 1)

    def _all_are_ours(self) -> bool:
        return all(_identity(descriptor) == file for descriptor, file in self._files.items())

    def close(self) -> None:
        """Give everything back; after the core has stopped, or in a child of fork, where neither runs.

        What the program has closed, and perhaps opened again as a file of its own, is left alone. The thread then reads
        from what nobody can write to any more, and ends with the process.
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
    """Which file a number stands for; None if it stands for none."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mode


def _start_without_signals(thread: threading.Thread) -> None:
    # The program's signals are for its own threads. One that came to this one would end its wait with EINTR, which
    # os.eventfd_read does not go on after. A thread inherits the mask, so that no signal comes between start and mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stacks(besides: int) -> str:
    """As faulthandler writes them, the main thread as the current one."""
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
    """Begin with the signal that the knob ``stack_signal`` names; None where it says 0, or the signal is taken."""
    number = int(runtime.knobs()["stack_signal"][0])
    if number == 0:
        return None
    if number not in signal.valid_signals() or signal.getsignal(number) is not signal.SIG_DFL:
        why = f"signal {number} has a handler already" if number in signal.valid_signals() else f"{number} is no signal"
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
