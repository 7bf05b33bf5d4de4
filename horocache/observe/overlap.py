"""How much of a rank's communication its program does not wait for, and what that costs in processor time."""

from __future__ import annotations

import time
from typing import NamedTuple

from horocache.core import context
from horocache.core.runtime_protocol import Runtime
from horocache.core.session import Reading


class Overlap(NamedTuple):
    """What :func:`overlap` returns; times in seconds."""

    overlap: float  # 1 - blocked_s / busy_s, in [0, 1]; 0.0 where nothing ran
    blocked_s: float  # in which threads of the program waited for operations
    busy_s: float  # in which operations were under way
    cpu_s: float  # processor time of the whole process
    steps: int  # of optimizers
    cpu_s_per_step: float  # 0.0 without a step
    daemon_cpu_s: float  # the part of cpu_s that the daemon's thread took


def _read(runtime: Runtime) -> Reading:
    counters = runtime.metrics()
    names = ("blocked_ns", "lane_busy_ns", "steps", "coordinator_cpu_ns")
    blocked, busy, steps, daemon = (int(counters[name]) for name in names)
    return Reading(blocked, busy, time.process_time_ns(), steps, daemon)


def overlap(*, reset: bool = False) -> Overlap:
    """How much of this rank's communication was hidden behind computation, since ``init`` or the last reset.

    Args:
        reset: begin anew after this call.

    Returns:
        ``(overlap, blocked_s, busy_s, cpu_s, steps, cpu_s_per_step, daemon_cpu_s)``, by name, too; times in seconds.

        ``overlap`` is ``1 - blocked_s / busy_s``, not below 0: 1.0 if nobody waited, 0.0 if somebody waited for all of
        it, or if nothing ran.

        ``busy_s`` is the time in which at least one operation that the ranks had agreed on was under way here, or
        queued behind one; agreeing and waiting for other ranks to agree are not in it. ``blocked_s`` is the time that
        threads spent in calls that wait for an operation, such as ``synchronize``, ``step()`` and blocking operations,
        if it was not over when they began. It counts when the wait ends, for each of several threads that wait at the
        same time. Waits for ranks that come late are in it, too, which is why it may exceed ``busy_s``.

        ``cpu_s`` is the processor time, in user and system mode, of all threads of this process, those that compute
        among them; ``daemon_cpu_s`` is the part of the daemon's coordinator thread. Threads that wait drive operations
        themselves, which is in the former only.

        ``steps`` counts how often optimizers and tapes have reduced gradients on this rank. In TensorFlow's functions,
        and in JAX, where this rank is alone, none is counted.

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
