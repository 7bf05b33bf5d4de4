"""Starts and stops the timeline of this rank while the job runs."""

from __future__ import annotations

import os

from horocache.core import context


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Start to record the operations of this rank in a file in Chrome's trace format.

    Each rank that calls it writes its own file: rank 0 writes ``file_path``, rank 1 ``trace.rank1.json`` for
    ``trace.json``, and so on. An operation in flight appears when it ends. https://ui.perfetto.dev opens the file,
    which is complete JSON at any moment. The knob ``timeline`` does the same from ``init()`` on.

    Args:
        file_path: path of rank 0's file. Its folder must exist. An existing file is overwritten.
        mark_cycles: True also marks the rounds.

    Raises:
        NotInitializedError: before ``init``. InvalidArgumentError: a timeline is already being written, or the file
            cannot be written.
    """
    context.current().runtime.start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """Finish the file of :func:`start_timeline`, or of the knob ``timeline``. Does nothing if no timeline is written.

    Raises:
        NotInitializedError: before ``init`` or after ``shutdown``, which also finishes the file.
    """
    context.current().runtime.stop_timeline()
