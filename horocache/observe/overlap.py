"""Measures how much of a rank's communication is hidden behind computation, and its cost in processor time."""

from __future__ import annotations

import time
from typing import NamedTuple

from horocache.core import context
from horocache.core.runtime_protocol import Runtime
from horocache.core.session import Reading


class Overlap(NamedTuple):
    """The result of :func:`overlap`; times in seconds."""

    overlap: float  # 1 - blocked_s / busy_s, in [0, 1]; 0.0 if no operation ran
    blocked_s: float  # time in which threads of the program waited for operations
    busy_s: float  # time in which operations were running
    cpu_s: float  # processor time of the whole process
    steps: int  # steps of optimizers
    cpu_s_per_step: float  # 0.0 without a step
    daemon_cpu_s: float  # the part of cpu_s that the progress thread used


def _read(runtime: Runtime) -> Reading:
    counters = runtime.metrics()
    names = ("blocked_ns", "lane_busy_ns", "steps", "progress_cpu_ns")
    blocked, busy, steps, daemon = (int(counters[name]) for name in names)
    return Reading(blocked, busy, time.process_time_ns(), steps, daemon)


def overlap(*, reset: bool = False) -> Overlap:
    """Return how much of this rank's communication was hidden behind computation, since ``init`` or the last reset.

    Args:
        reset: True starts a new measurement after this call.

    Returns:
        The named tuple ``(overlap, blocked_s, busy_s, cpu_s, steps, cpu_s_per_step, daemon_cpu_s)``; times in seconds.

        ``overlap`` is ``1 - blocked_s / busy_s``, not below 0: 1.0 if no thread waited, 0.0 if threads waited during
        all of ``busy_s`` or if no operation ran.

        ``busy_s`` is the time in which at least one operation that the ranks had agreed on was running on this rank, or
        was queued behind a running one. It does not include negotiation or waiting for other ranks to agree.
        ``blocked_s`` is the time that threads spent in calls that wait for an operation, such as ``synchronize``,
        ``step()`` and blocking operations, if the operation was not complete when the call began. A wait counts when it
        ends, once for each thread that waits. Waits for late ranks are included, so ``blocked_s`` may exceed
        ``busy_s``.

        ``cpu_s`` is the processor time, in user and system mode, of all threads of this process, including threads that
        compute. ``daemon_cpu_s`` is the part of horocache's progress thread. Threads that wait drive operations
        themselves; that time is part of ``cpu_s`` only.

        ``steps`` counts how often optimizers and tapes have reduced gradients on this rank. TensorFlow functions and
        JAX count none if this rank is alone.

    Raises:
        NotInitializedError: before ``init`` or after ``shutdown``.
    """
    session = context.current()
    before, now = session.overlap_start, _read(session.runtime)
    if reset:
        session.overlap_start = now
    blocked, busy, cpu, steps, daemon = (b - a for a, b in zip(before, now, strict=True))
    return Overlap(
        overlap=max(0.0, 1.0 - blocked / busy) if busy else 0.0,
        blocked_s=blocked / 1e9,
        busy_s=busy / 1e9,
        cpu_s=cpu / 1e9,
        steps=steps,
        cpu_s_per_step=cpu / 1e9 / steps if steps else 0.0,
        daemon_cpu_s=daemon / 1e9,
    )
