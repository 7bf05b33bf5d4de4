"""Measures one setting: bytes per second over whole steps. Pure: observations in, scores out."""

from __future__ import annotations

import statistics
from typing import NamedTuple

# Steps after a change that do not count: a new number of groups begins at most four steps after rank 0 asks for it, and
# the step after that negotiates the new operations.
SKIPPED_STEPS = 6
# How long a sample lasts at least. Steps are observed every 2 ms or less often, so this limits the error of its time.
_LEAST_NS = 100_000_000
_LEAST_INTERVALS = 5  # with fewer, the time of the whole sample counts instead of the median


class Score(NamedTuple):
    """The result of a sample."""

    bytes_per_second: float
    step_s: float  # seconds of one step
    steps: int  # steps of the sample, including those that do not count


class Sample:
    """Collects observations of a setting until it has a score.

    The score is the bytes of a step, by the bytes of the whole sample, divided by the median time of a step. An
    observation interval of several steps counts as steps of equal length. For example, intervals of 1, 1 and 2
    steps that lasted 10, 30 and 20 ms make step times of 10, 30, 10 and 10 ms, whose median is 10 ms.

    Role: used by one thread.
    """

    def __init__(self, steps: int, first_step: int) -> None:
        """Begin after a change of settings.

        Args:
            steps: number of steps to measure at least; the sample lasts at least 0.1 s.
            first_step: the count of steps when the settings changed.
        """
        self._wanted = steps
        self._begin = first_step
        self._first: tuple[int, int, int] | None = None
        self._last = (0, 0, 0)
        self._times: list[float] = []  # nanoseconds of each step
        self._intervals = 0

    def observe(self, steps: int, num_bytes: int, now_ns: int) -> Score | None:
        """Take the counts of steps and bytes at a time; return the score when the sample is complete.

        Args:
            steps: optimizer steps since the start.
            num_bytes: bytes of all operations since the start.
            now_ns: time in nanoseconds at which ``steps`` was seen.
        """
        seen = (steps, num_bytes, now_ns)
        if self._first is None:
            if steps >= self._begin + SKIPPED_STEPS and steps > self._last[0] > 0:
                self._first = seen
            self._last = seen
            return None
        done = steps - self._last[0]
        if done > 0:
            self._times += [(now_ns - self._last[2]) / done] * min(done, 1 << 16)
            self._intervals += 1
            self._last = seen
        total, elapsed = steps - self._first[0], now_ns - self._first[2]
        if done <= 0 or total < self._wanted or elapsed < _LEAST_NS:
            return None
        each = statistics.median(self._times) if self._intervals >= _LEAST_INTERVALS else elapsed / total
        per_step = (num_bytes - self._first[1]) / total
        return Score(per_step / each * 1e9, each / 1e9, steps - self._begin)
