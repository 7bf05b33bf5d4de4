"""Signals as bytes in a pipe, so that a poll() loop sees them in order."""

import ctypes
import os
import signal
from types import FrameType, TracebackType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OTHERS = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP)


class SignalPipe:
    """While this is open, the launcher's signals are read from ``fd``.

    A signal that was ignored at the start, for example by nohup, stays ignored.
    """

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def __enter__(self) -> "SignalPipe":
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for signum in (*ENDING, *_OTHERS):
            before = signal.getsignal(signum)
            if signum == signal.SIGCHLD or before is not signal.SIG_IGN:
                self._before[signum] = before
                signal.signal(signum, _nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.fd)
        os.close(self._write)

    def take(self) -> list[int]:
        """Return the signals that have arrived, oldest first."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []


def _nothing(signum: int, frame: FrameType | None) -> None:
    """Do nothing: the signal's only effect is the byte in the pipe."""


def end_with(caller: int) -> None:
    """Have the kernel send SIGTERM to this process when its parent, the process ``caller``, ends."""
    set_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
    if ctypes.CDLL(None, use_errno=True).prctl(set_death_signal, int(signal.SIGTERM)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != caller:  # it ended before the call of prctl
        signal.raise_signal(signal.SIGTERM)
