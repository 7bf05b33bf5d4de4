"""Ends the ranks when launcher and guardian are both gone.

Note [The lifeline]
The guardian ends a job whose launcher was killed. If both are killed together, as ``pkill -9 -f horocache`` does, only
the kernel can end the ranks. Launcher and guardian hold the writing ends of one pipe. Each rank inherits a reading
end, which is set to asynchronous notification: when the last writing end is closed, the kernel sends a signal,
SIGKILL here, to the owner of the reading end, which is the rank's process group. The signal reaches ranks behind
shells, stopped ranks, and ranks that ignore other signals, and needs no thread in them. The kernel sends it as long as
one process of the group keeps the descriptor. A rank that closes the descriptor loses only this protection.
"""

from __future__ import annotations

import fcntl
import os
import signal


class Lifeline:
    """The pipe. Owned by the launcher; the guardian inherits the writing end ``held``."""

    def __init__(self) -> None:
        self._read, self.held = os.pipe2(os.O_CLOEXEC)

    def new_end(self) -> int:
        """Open a reading end for one rank to inherit; each rank needs its own, as the owner differs."""
        return os.open(f"/proc/self/fd/{self._read}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    @staticmethod
    def tie(end: int, leader: int) -> None:
        """Tie the process group of ``leader``, which has inherited ``end``, to the lifeline."""
        fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(end, fcntl.F_SETOWN, -leader)
        fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)

    def close(self) -> None:
        """Close the pipe, after the last rank has ended."""
        os.close(self._read)
        os.close(self.held)
