"""Finds and ends the processes of a job. Standard library only: the guardian loads this file alone.

A process belongs to a rank if it is in the rank's session or carries the job's id in the environment it was started
with. The id finds daemons that left the session; the session finds processes that were started with an empty
environment.
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
    """A living process of the job."""

    pid: int
    name: str


def members(sessions: Collection[int], job: str) -> list[Member]:
    """List the living processes of the given sessions and of ``job``, except zombies and this process."""
    mark = JOB_VARIABLE + b"=" + job.encode() if job else b"="  # matches no process: no variable has an empty name
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - os.listdir is what stays fast with thousands of processes
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        stat = _read(f"/proc/{entry}/stat")
        # The name stands in parentheses and may contain parentheses; the fields behind it are state, parent, group,
        # session.
        head, _, tail = stat.rpartition(b") ")
        fields = tail.split()
        if len(fields) < 4 or fields[0] in (b"Z", b"X"):
            continue
        if int(fields[3]) in sessions or mark in _read(f"/proc/{entry}/environ").split(b"\0"):
            found.append(Member(int(entry), head.partition(b"(")[2].decode(errors="backslashreplace")))
    return found


def send(targets: Collection[Member], signum: int) -> None:
    """Send ``signum`` to each process, and SIGCONT, so that a stopped process can act on it."""
    for target in targets:
        for number in (signum, signal.SIGCONT):
            try:
                os.kill(target.pid, number)
            except ProcessLookupError:
                break
            except PermissionError:  # a set-uid program, which this user may not end
                break


def end(sessions: Collection[int], job: str, grace: float) -> list[Member]:
    """Send TERM, wait ``grace`` seconds, send KILL for up to 5 s; return the processes that are left even then."""
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
        return b""  # the process has ended, or is another user's
