"""A slow link: ``relay.py NEAR FAR DELAY_S BYTES_PER_S`` makes two TUN interfaces and carries packets between them.

Each direction sends packets one after the other at that rate, and every packet arrives later by the delay. Prints
``ready`` when the interfaces exist; they can then be moved into other network namespaces. Carries packets from the
first line on its standard input until that input is closed.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
# Few large packets, so that a processor with other work to do can keep up.
_MTU = 32_000
_SPIN_S = 50e-6  # the last part of a wait, which is spent without sleeping


class Direction:
    """Packets on their way from one interface to the other."""

    def __init__(self, source: int, target: int, delay_s: float, bytes_per_s: float) -> None:
        self.source, self.target = source, target
        self._delay_s, self._bytes_per_s = delay_s, bytes_per_s
        self._free_at = 0.0
        self._under_way: deque[tuple[float, bytes]] = deque()

    def take(self, now: float) -> None:
        """Read a packet; it leaves after the packets before it."""
        packet = os.read(self.source, _MTU + 100)
        self._free_at = max(now, self._free_at) + len(packet) / self._bytes_per_s
        self._under_way.append((self._free_at + self._delay_s, packet))

    def deliver(self, now: float) -> float:
        """Write the packets that are due; return the time of the next one."""
        while self._under_way and self._under_way[0][0] <= now:
            os.write(self.target, self._under_way.popleft()[1])
        return self._under_way[0][0] if self._under_way else now + 1.0


def main(near: str, far: str, delay_s: float, bytes_per_s: float) -> None:
    """Carry packets until the standard input is closed."""
    ends = first, second = _tun(near), _tun(far)
    directions = [Direction(first, second, delay_s, bytes_per_s), Direction(second, first, delay_s, bytes_per_s)]
    # Real-time priority, as a network does not wait for its hosts' processors.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("ready", flush=True)
    os.read(0, 1)
    while True:
        due = min(direction.deliver(time.monotonic()) for direction in directions)
        wait_s = due - time.monotonic() - _SPIN_S
        readable, _, _ = select.select([*ends, 0], [], [], max(wait_s, 0.0))
        if 0 in readable and not os.read(0, 100):
            return
        for direction in directions:
            if direction.source in readable:
                direction.take(time.monotonic())


def _tun(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "mtu", str(_MTU), "txqueuelen", "1000"], check=True)
    return end


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
