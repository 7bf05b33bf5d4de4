"""Finds what a job has left behind: its processes, by a mark in their environment, and its shared memory."""

import contextlib
import os
import signal
from pathlib import Path

MARK = "HC_TEST_MARK"


def marked(mark: str) -> list[int]:
    """The processes, except zombies, whose environment has ``mark``."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_bytes().rpartition(b") ")[2][:1]
            if state not in (b"Z", b"X") and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def kill_marked(mark: str) -> None:
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def shared_memory_files() -> set[str]:
    """The files of horocache; an MPI whose rank is killed leaves its own."""
    with contextlib.suppress(FileNotFoundError):
        return {path.name for path in Path("/dev/shm").iterdir() if "horocache" in path.name}
    return set()
