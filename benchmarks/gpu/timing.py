"""Time of work on a stream: on the device between two events, of the calls on the host, and from call to completion."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.cuda import Driver
from benchmarks.gpu.record import Checks, median

KIB, MIB = 1 << 10, 1 << 20
WARM_UP = 3  # first repetitions, which do not count


@dataclass
class Times:
    """Microseconds of each repetition."""

    device: list[float]
    host: list[float]
    hold_us: float = math.inf

    @property
    def us(self) -> float:
        """Median of the device time."""
        return median(self.device)

    def note(self) -> str:
        """Spread and host time, for a row's note; and how often the device may have waited for the host."""
        late = sum(us > self.hold_us for us in self.host)
        warning = f"; the host was slower than the delay {late} times" if late else ""
        return f"{spread(self.device)}; host {median(self.host):.1f} us{warning}"


def spread(times: list[float]) -> str:
    """Least, greatest and number of times."""
    return f"min {min(times):.1f}, max {max(times):.1f}, n {len(times)}"


class Clock:
    """Measures work that a function enqueues on a stream."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver = driver
        self._stream = stream
        self._first = driver.event(0)
        self._second = driver.event(0)

    def measure(self, enqueue: Callable[[], object], repetitions: int = 20, hold_ms: float = 0.3) -> Times:
        """Time the work behind a delay of ``hold_ms``, so that the device does not wait for the host's calls."""
        driver, times, ms = self._driver, Times([], []), ctypes.c_float()
        for _ in range(repetitions + WARM_UP):
            driver.busy(self._stream, hold_ms)
            driver.must("cuEventRecord", self._first, self._stream)
            start = time.perf_counter()
            enqueue()
            times.host.append((time.perf_counter() - start) * 1e6)
            driver.must("cuEventRecord", self._second, self._stream)
            driver.synchronize(self._stream)
            driver.must("cuEventElapsedTime_v2", ctypes.byref(ms), self._first, self._second)
            times.device.append(ms.value * 1000)
        return Times(times.device[WARM_UP:], times.host[WARM_UP:], hold_ms * 1000)

    def wall(self, enqueue: Callable[[], object], repetitions: int = 20) -> list[float]:
        """Microseconds from the first call to completion, on an idle stream."""
        times = []
        for _ in range(repetitions + WARM_UP):
            start = time.perf_counter()
            enqueue()
            self._driver.synchronize(self._stream)
            times.append((time.perf_counter() - start) * 1e6)
        return times[WARM_UP:]


def figure(checks: Checks[Any], name: str, call: str, words: str, times: list[float], note: str = "") -> None:
    """A row for the median of times in microseconds; the note has the spread."""
    checks.figure(name, call, words, median(times), "us", "; ".join(part for part in (note, spread(times)) if part))


def label(size: int) -> str:
    """A number of bytes in words."""
    if size < KIB:
        return f"{size} B"
    return f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"
