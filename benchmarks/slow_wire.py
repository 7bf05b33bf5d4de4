"""A backend whose operations take the time of a slow network, without the processor time that a simulated one needs."""

from __future__ import annotations

import time
from typing import Any

NAME = "wire"


def register() -> Any:
    """Make the backend known to horocache, by its name; return its class, whose attributes set the times.

    An operation takes ``latency_s``, and its bytes over ``bytes_per_s``; it is gloo's, which runs within that time.
    """
    from horocache.user_backends import register_backend
    from horocache.user_backends.gloo import Gloo

    class SlowWire(Gloo):
        """gloo, after which a thread sleeps until the time is over."""

        latency_s = 0.0
        bytes_per_s = float("inf")

        def start(self, call: Any) -> Any:
            """Begin an operation."""
            self._end = time.perf_counter() + self.latency_s + call.output.nbytes / self.bytes_per_s
            return super().start(call)

        def test(self, work: Any) -> bool:
            """Wait until it has ended and its time is over."""
            if not super().test(work):
                return False
            time.sleep(max(0.0, self._end - time.perf_counter()))
            return True

    register_backend(NAME, SlowWire)
    return SlowWire
