"""A gate that holds a stream until the CPU opens it, and a flag that tells the CPU that the device came there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from ctypes import c_uint

from benchmarks.gpu.cuda import DEVICEMAP, PORTABLE, WAIT_GEQ, Driver, SharedMemory
from benchmarks.gpu.record import CallError

LIMIT_S = 3.0
PAUSE_S = 100e-6  # in which the device comes to the gate
FLAG = 1024  # offset; the gate's value is at 0


class Gate:
    """Values in registered memory; the CPU's writes and reads are plain memory accesses.

    A thread opens a gate that stays closed for a second or two: the thread that would open it may be inside a call
    that waits for the gated stream.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        memory = SharedMemory(4096)
        driver.must("cuMemHostRegister_v2", memory.address, 4096, PORTABLE | DEVICEMAP)
        self._memory = memory
        self.address = memory.address
        self.flag_address = memory.address + FLAG
        self._value = c_uint.from_address(self.address)
        self.flag = c_uint.from_address(self.flag_address)
        self.turn = 0
        self.rescues = 0  # times that the guard opened the gate
        threading.Thread(target=self._guard, daemon=True).start()

    def close(self, stream: int) -> None:
        """Begin a turn: the stream waits."""
        self.turn += 1
        self._driver.must("cuStreamWaitValue32_v2", stream, self.address, self.turn, WAIT_GEQ)

    def open(self) -> None:
        """Let the stream go on."""
        self._value.value = self.turn

    def _guard(self) -> None:
        seen = 0
        while True:
            time.sleep(1)
            if self.turn == seen and self._value.value != seen:
                self.rescues += 1
                self.open()
            seen = self.turn

    def signal(self, stream: int) -> None:
        """Have the stream write the turn's number into the flag."""
        self._driver.must("cuStreamWriteValue32_v2", stream, self.flag_address, self.turn, 0)

    def watch(self) -> None:
        """Poll the flag until it has the turn's number.

        Raises:
            CallError: it has not in time.
        """
        flag, turn, deadline = self.flag, self.turn, time.monotonic() + LIMIT_S
        while flag.value != turn:
            if time.monotonic() > deadline:
                raise CallError(f"no signal after {LIMIT_S:g} s", -1)

    def latency(
        self, stream: int, enqueue: Callable[[], None], wait: Callable[[], object], repetitions: int
    ) -> list[float]:
        """Microseconds from opening the gate until ``wait`` returns.

        Args:
            stream: what the gate holds.
            enqueue: queues the work behind the gate, and its signal.
            wait: waits for the signal.
            repetitions: how often; 5 more warm up.
        """
        times = []
        for _ in range(repetitions + 5):
            self.close(stream)
            try:
                enqueue()
                settled = time.perf_counter() + PAUSE_S
                while time.perf_counter() < settled:
                    pass
                start = time.perf_counter()
            finally:
                self.open()
            wait()
            times.append((time.perf_counter() - start) * 1e6)
            self._driver.must("cuCtxSynchronize")
        return times[5:]
