"""The stacks of this process's Python threads, for the reports of the core."""

from __future__ import annotations

import faulthandler
import os
import signal
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horocache._session import Runtime

_OWN_FOLDER = f"{Path(__file__).resolve().parent.parent}{os.sep}"


class StackWatch:
    """Has faulthandler write all stacks into a file without a name whenever the core sends a signal.

    Role: one per session, from ``init`` to ``shutdown``; it works also while a thread holds the interpreter's lock.
    """

    def __init__(self, runtime: Runtime, number: int) -> None:
        self._signal = number
        self._file = os.memfd_create("horocache-stacks", os.MFD_CLOEXEC)
        faulthandler.register(number, self._file, all_threads=True)
        runtime.watch_stacks(number, self._file, _OWN_FOLDER)

    def close(self) -> None:
        """Give the signal back; after the core has stopped, or in a child of fork, where it does not run."""
        faulthandler.unregister(self._signal)
        os.close(self._file)


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
    return StackWatch(runtime, number)
