"""The timeline of this rank: on and off while the job runs."""

from __future__ import annotations

import os

from horocache.core import context


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begin to write what this rank does, as a file in Chrome's trace format, which https://ui.perfetto.dev opens.

    Each rank that calls it writes a file: rank 0 ``file_path``, rank 1 ``trace.rank1.json`` for ``trace.json``, and so
    on. What is in flight appears when it ends. The file is whole JSON at any moment. The knob ``timeline`` does the
    same from ``init()`` on.

    Args:
        file_path: of rank 0's file; its folder must be there. What the file held is lost.
        mark_cycles: mark the rounds, too.

    Raises:
        NotInitializedError: before ``init``. InvalidArgumentError: a timeline is being written already, or the file
            cannot be.
    """
    context.current().runtime.start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """Finish the file of :func:`start_timeline`, or of the knob ``timeline``. Does nothing if there is none.

    Raises:
        NotInitializedError: before ``init`` or after ``shutdown``, which finishes the file, too.
    """
    context.current().runtime.stop_timeline()
