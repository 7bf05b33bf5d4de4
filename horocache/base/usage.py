"""Errors of the command line, which are shown as one line, and the state of the standard streams."""

import errno
import os
import signal
import sys

from horocache.base.untrusted_text import printable


class UsageError(Exception):
    """An error that is shown as one line; ``status`` is the exit code."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


def start_hint(error: OSError) -> str:
    """Return advice about a process that could not be started; empty if the error says enough."""
    if error.errno == errno.ENOEXEC:
        return "; a script needs a first line such as #!/usr/bin/env python3, or its interpreter before its name"
    if error.errno == errno.EAGAIN:
        return "; the limit of processes (ulimit -u, or the container's) is reached"
    return ""


def open_standard_streams() -> None:
    """Open the null device for each closed standard stream; else the next file to be opened would take its place."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # it was closed when Python started
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def complain(program: str, text: str, keep: str = "") -> None:
    r"""Write a line to stderr, with control characters escaped: a quoted file name cannot act on the terminal.

    Args:
        program: name of the program that reports the error.
        text: the error.
        keep: characters that are not escaped: ``"\n"`` if the text has several lines of its own.
    """
    sys.stderr.write(f"{program}: {printable(text, keep)}\n")


def reader_is_gone() -> int:
    """Discard the rest of a command's output, whose reader has ended, as in ``horocache dump FILE | head``.

    Returns:
        The exit code of the command.
    """
    # Else the interpreter would report an error when it flushes the buffer at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 128 + signal.SIGPIPE
