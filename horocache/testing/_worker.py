"""The process of one rank of :func:`horocache.testing.run_ranks`."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from horocache.collectives import object_collectives
from horocache.core.lifecycle import shutdown


def main(sender: Connection, payload: bytes, environment: Mapping[str, str], log: str, timeout: float) -> None:
    """Run the pickled function and send the pickled tuple ``(value, error, trace)``.

    Args:
        sender: the end of the pipe to the test's process.
        payload: the pickled function and its arguments.
        environment: variables that are added to the environment.
        log: the file that gets the output of the process.
        timeout: seconds after which the stacks of all threads are printed.
    """
    with Path(log).open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    os.environ.update(environment)
    tempfile.tempdir = None  # discards the server's folder, which was chosen with another environment
    faulthandler.enable()
    # The watchdog thread prints the stacks even if C code hangs and never returns to Python.
    faulthandler.dump_traceback_later(timeout, exit=False)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    try:
        function, args = object_collectives.loads(payload)
        answer = object_collectives.dumps((function(*args), None, ""))
        shutdown()
    except BaseException as error:
        answer = _failure(error)
    sender.send_bytes(answer)
    sender.close()


def _failure(error: BaseException) -> bytes:
    trace = "".join(traceback.format_exception(error))
    try:
        data = object_collectives.dumps((None, error, trace))
        object_collectives.loads(data)
    except Exception:
        # An error whose constructor takes other arguments than the message cannot be unpickled; its trace is sent.
        return object_collectives.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), trace))
    return data
