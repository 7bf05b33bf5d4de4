"""Errors of the command line that are shown as one line."""

import errno
import os
import signal
import sys

from horocache.base.untrusted_text import printable


class UsageError(Exception):
    """Shown as one line; ``status`` is the exit code."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


def start_hint(error: OSError) -> str:
    """What to do about a process that could not be started; empty if the error says enough."""
    if error.errno == errno.ENOEXEC:
        return "; a script needs a first line such as #!/usr/bin/env python3, or its interpreter before its name"
    if error.errno == errno.EAGAIN:
        return "; the limit of processes (ulimit -u, or the container's) is reached"
    return ""


def open_standard_streams() -> None:
    """Put the null device where a standard stream is closed, or the next file to be opened would take its place."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # it was closed when Python began
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def complain(program: str, text: str, keep: str = "") -> None:
    r"""Write a line to stderr; what it quotes, such as the name of a file, cannot act on the terminal.

    Args:
        program: who complains.
        text: about what.
        keep: ``"\n"`` where the text has several lines of its own.
    """
    sys.stderr.write(f"{program}: {printable(text, keep)}\n")


def reader_is_gone() -> int:
    """Give the exit code of a command whose output nobody reads any more, as in ``horocache dump FILE | head``."""
    # Whatever is still in the buffer goes nowhere, or the interpreter would complain about it at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 128 + signal.SIGPIPE
