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
    """Run the function and send ``(value, error, trace)``."""
    with Path(log).open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    os.environ.update(environment)
    tempfile.tempdir = None  # what the server has found, which had another environment
    faulthandler.enable()
    # The watchdog's thread outlives a hang in C code that never returns to Python.
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
        # Errors with other constructor arguments than their text cannot be rebuilt; their trace says it all.
        return object_collectives.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), trace))
    return data
