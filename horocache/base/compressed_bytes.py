"""The bytes that compressed tensors had, and the bytes that were sent instead."""

from __future__ import annotations

import threading


class CompressedBytes:
    """Two counters of one session, for :func:`horocache.metrics`.

    Role: owned by the session; used by any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given = 0
        self._sent = 0

    def add(self, given: int, sent: int) -> None:
        """Count tensors of ``given`` bytes for which ``sent`` bytes are sent."""
        with self._lock:
            self._given += given
            self._sent += sent

    def counters(self) -> dict[str, int]:
        """Return the counters by their names in ``metrics()``."""
        with self._lock:
            return {"compressed_bytes": self._given, "wire_bytes": self._sent}
