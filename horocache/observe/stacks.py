"""The stacks of this process's Python threads, for the reports of the core."""

from __future__ import annotations

import faulthandler
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from horocache.errors import UnsupportedError

if TYPE_CHECKING:
    from horocache._session import Runtime

_OWN_FOLDER = f"{Path(__file__).resolve().parent.parent}{os.sep}"


class StackWatch:
    """Has faulthandler write all stacks into a file without a name whenever the core sends a signal.

    Role: one per session, from ``init`` to ``shutdown``; it works also while a thread holds the interpreter's lock.
    """

    def __init__(self, runtime: Runtime, number: int) -> None:
        """Begin.

        Raises:
            UnsupportedError: the signal has a handler already, or is none.
        """
        self._signal = number
        self._file = os.memfd_create("horocache-stacks", os.MFD_CLOEXEC)
        try:
            runtime.watch_stacks(number, self._file, _OWN_FOLDER)
        except BaseException:
            os.close(self._file)
            raise
        faulthandler.register(number, self._file, all_threads=True, chain=True)

    def close(self) -> None:
        """Give the signal back; after the core has stopped."""
        faulthandler.unregister(self._signal)
        os.close(self._file)


def watch(runtime: Runtime) -> StackWatch | None:
    """Begin with the signal that the knob ``stack_signal`` names; None where it says 0, or the signal is taken."""
    number = int(runtime.knobs()["stack_signal"][0])
    if number == 0:
        return None
    try:
        return StackWatch(runtime, number)
    except UnsupportedError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        return None
