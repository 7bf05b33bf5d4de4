"""Which processes belong to a job, and how they are ended. Standard library only: the guardian loads this file alone.

A process belongs to a rank if it is in the rank's session or carries the job's id in the environment it was started
with. The second catches daemons that left the session; the first, those that were started with an empty environment.
"""

import os
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

JOB_VARIABLE = b"HOROCACHE_JOB_ID"
_POLL_SECONDS = 0.02


class Member(NamedTuple):
    """A process of the job that is still there."""

    pid: int
    name: str


def members(sessions: Collection[int], job: str) -> list[Member]:
    """List the living processes (zombies are not) of the given sessions and of ``job``, without this one."""
    mark = JOB_VARIABLE + b"=" + job.encode() if job else b"="  # the environment has no nameless entry
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - os.listdir is what stays fast with thousands of processes
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        stat = _read(f"/proc/{entry}/stat")
        # The name stands in parentheses and may hold anything, even those; behind it: state, parent, group, session.
        head, _, tail = stat.rpartition(b") ")
        fields = tail.split()
        if len(fields) < 4 or fields[0] in (b"Z", b"X"):
            continue
        if int(fields[3]) in sessions or mark in _read(f"/proc/{entry}/environ").split(b"\0"):
            found.append(Member(int(entry), head.partition(b"(")[2].decode(errors="backslashreplace")))
    return found


def send(targets: Collection[Member], signum: int) -> None:
    """Send ``signum`` to each process; stopped ones are continued so that they can act on it."""
    for target in targets:
        for number in (signum, signal.SIGCONT):
            try:
                os.kill(target.pid, number)
            except ProcessLookupError:
                break
            except PermissionError:  # a set-uid program: not ours to end
                break


def end(sessions: Collection[int], job: str, grace: float) -> list[Member]:
    """TERM, ``grace`` seconds, KILL. Returns the processes that are there even then (after 5 s of trying)."""
    _send_until_gone(sessions, job, signal.SIGTERM, grace, once=True)
    return _send_until_gone(sessions, job, signal.SIGKILL, 5.0, once=False)


def _send_until_gone(sessions: Collection[int], job: str, signum: int, seconds: float, *, once: bool) -> list[Member]:
    deadline = time.monotonic() + seconds
    left = members(sessions, job)
    send(left, signum)
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        left = members(sessions, job)
        if not once:
            send(left, signum)
    return left


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # ended since, or another user's
        return b""
