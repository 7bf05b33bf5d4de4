"""Calibration of order between streams: handing work on by events, gates that the CPU opens, stream priorities."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from ctypes import c_float, c_int, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import partial

from benchmarks.gpu import party as parties
from benchmarks.gpu.cuda import (
    DEVICE_ATTRIBUTES,
    NON_BLOCKING,
    PORTABLE,
    PTX,
    PTX_HEADER,
    Code,
    Driver,
    SharedMemory,
)
from benchmarks.gpu.gate import Gate
from benchmarks.gpu.packing_kernels import Packer
from benchmarks.gpu.record import AT_ONCE, CallError, median
from benchmarks.gpu.session import CudaChecks, Session
from benchmarks.gpu.timing import KIB, MIB, figure

REF = ctypes.byref
STREAMS, CONNECTIONS = 64, 32
WAITS_MS = 60.0
RESIDENT_THREADS = 2048  # of a multiprocessor
GREATEST, LEAST = -5, 0  # priorities; the driver brings others into its range

BURN = (
    PTX_HEADER
    + """
// Occupies its block's multiprocessor for at least `cycles` clock cycles.
.visible .entry burn(.param .u64 cycles)
.maxntid 1024, 1, 1
{
  .reg .u64 %rd<5>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [cycles];
  mov.u64 %rd2, %clock64;
BURN:
  mov.u64 %rd3, %clock64;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p1, %rd4, %rd1;
  @%p1 bra BURN;
  ret;
}
"""
)


def ordering(session: Session) -> None:
    """Latency between streams, what a stream that waits for the CPU holds up, priorities."""
    checks = session.cuda()
    session.run((_handing_on, _device_time, _stored_value, _beside_gates, _calls_beside_a_gate), checks)
    session.run((_calls_on_the_gated_stream, _priorities, _many_behind_a_gate), checks)
    helper = session.helper("cuda_ordering:more_connections", {"CUDA_DEVICE_MAX_CONNECTIONS": str(CONNECTIONS)})
    parties.report(session, "gates", f"{CONNECTIONS} connections", [helper.finish(12)])


def more_connections(session: Session) -> None:
    """Gates in a process whose streams share more connections to the device than the 8 by default."""
    session.run((_many_gates,), session.cuda())


# ---- handing work on


def _handing_on(checks: CudaChecks) -> None:
    """From a gate that opens to a value that the last of several streams writes; each waits for the one before.

    The first stream only waits at the gate and the last one only signals; between them are some kernels, each on a
    stream of its own, or all on one. Without a kernel one more stream may cost nothing: the driver may leave it out.
    """
    driver, gate = checks.library, Gate(checks.library)
    first, last, streams = driver.stream(), driver.stream(), [driver.stream() for _ in range(5)]
    events = [driver.event() for _ in range(8)]

    def path(kernels: int, several: bool) -> None:
        used = [streams[number if several else 0] for number in range(kernels)]
        before = first
        for stream, event in zip([*used, last], events, strict=False):
            if stream != before:
                driver.must("cuEventRecord", event, before)
                driver.must("cuStreamWaitEvent", stream, event, 0)
            if stream != last:
                driver.launch("nothing", stream)
            before = stream
        gate.signal(last)

    cases = [(kernels, several) for kernels in (0, 1, 2, 3, 5) for several in (False, True) if kernels > 1 or several]
    times: dict[tuple[int, bool], list[float]] = {case: [] for case in cases}
    for turn, case in itertools.product(range(5), cases):
        seen = gate.latency(first, partial(path, *case), gate.watch, 15)
        times[case] += seen if turn else []  # the first turn warms up
    for kernels, several in cases:
        if several and kernels > 1:
            more = (median(times[kernels, True]) - median(times[kernels, False])) / (kernels - 1)
            note, where = f"{more:.2f} us more for each stream than on one stream", f"{kernels} streams"
        else:
            note, where = "", "one stream"
        words = f"gate to signal of another stream, {kernels} kernels on {where}"
        figure(checks, words, "cuStreamWaitEvent", where, times[kernels, several], note)
    _on_the_gated_stream(checks, gate, first)


def _on_the_gated_stream(checks: CudaChecks, gate: Gate, stream: int) -> None:
    """The same with everything on the stream that the gate holds."""
    for kernels in (0, 1, 2, 5):

        def enqueue(kernels: int = kernels) -> None:
            for _ in range(kernels):
                checks.library.launch("nothing", stream)
            gate.signal(stream)

        times = gate.latency(stream, enqueue, gate.watch, 60)
        figure(checks, f"gate to signal of the same stream, {kernels} kernels", "cuLaunchKernel", "one stream", times)


def _device_time(checks: CudaChecks) -> None:
    """Device time between an event of one stream and an event of another stream that waited for it."""
    driver, gate, ms = checks.library, Gate(checks.library), c_float()
    user, backend, first, second = driver.stream(), driver.stream(), driver.event(0), driver.event(0)
    for words, target in (("of one stream", user), ("of two streams", backend)):
        times = []
        for _ in range(60):
            gate.close(user)
            driver.must("cuEventRecord", first, user)
            if target != user:
                driver.must("cuStreamWaitEvent", backend, first, 0)
            driver.must("cuEventRecord", second, target)
            gate.open()
            driver.synchronize(target)
            driver.must("cuEventElapsedTime_v2", REF(ms), first, second)
            times.append(ms.value * 1000)
        figure(checks, f"device time between two events {words}", "cuEventElapsedTime_v2", "", times)


def _stored_value(checks: CudaChecks) -> None:
    """A kernel tells the CPU: the latency of its store."""
    driver, gate, stream = checks.library, Gate(checks.library), checks.library.stream()

    def stored() -> None:
        driver.launch("store_u32", stream, c_uint64(gate.flag_address), c_uint(gate.turn))

    times = gate.latency(stream, stored, gate.watch, 60)
    figure(checks, "gate to a value that a kernel stores", "cuLaunchKernel", "registered memory", times)


# ---- what a stream that waits for the CPU holds up


def _beside_gates(checks: CudaChecks) -> None:
    _gates(checks, ((1, False), (8, False), (1, True), (2, True), (4, True), (7, True), (8, True)), "")


def _many_gates(checks: CudaChecks) -> None:
    _gates(checks, ((8, True), (CONNECTIONS - 1, True), (CONNECTIONS, True)), f", {CONNECTIONS} connections")


def _gates(checks: CudaChecks, cases: tuple[tuple[int, bool], ...], words: str) -> None:
    """Work on 64 streams while some of them wait for the CPU.

    Args:
        checks: the libraries.
        cases: how many streams wait, and whether each has a kernel behind its gate.
        words: end of the rows' names.
    """
    driver, gate = checks.library, Gate(checks.library)
    streams, events = [driver.stream() for _ in range(STREAMS)], [driver.event() for _ in range(STREAMS)]
    shared, device = SharedMemory(64 * KIB), driver.allocate(128 * KIB)
    driver.must("cuMemHostRegister_v2", shared.address, 64 * KIB, PORTABLE)
    works: dict[str, Callable[[int], object]] = {
        "a kernel": lambda stream: driver.launch("nothing", stream),
        "a copy to the device": lambda stream: driver.cuMemcpyHtoDAsync_v2(device, shared.address, 4 * KIB, stream),
        "a copy from the device": lambda stream: driver.cuMemcpyDtoHAsync_v2(shared.address, device, 4 * KIB, stream),
        "a copy on the device": lambda stream: driver.cuMemcpyDtoDAsync_v2(device, device + 64 * KIB, KIB, stream),
        "a written value": lambda stream: driver.cuStreamWriteValue32_v2(stream, gate.flag_address, 1, 0),
    }
    for (gated, behind), (what, work) in itertools.product(cases, works.items()):
        rescues, start = gate.rescues, time.perf_counter()
        for stream in streams[:gated]:
            gate.close(stream)
            if behind:
                driver.launch("nothing", stream)
        for stream, event in zip(streams[gated:], events[gated:], strict=True):
            work(stream)
            driver.must("cuEventRecord", event, stream)
        ms = (time.perf_counter() - start) * 1000
        time.sleep(0.03)
        stuck = [n for n in range(gated, STREAMS) if driver.cuEventQuery(events[n]) == Code.NOT_READY]
        gate.open()
        driver.must("cuCtxSynchronize")
        seen = f"{len(stuck)} of {STREAMS - gated} streams stuck"
        case = f"{gated} of {STREAMS} streams wait" + (", each with a kernel behind" if behind else "")
        note = f"stuck: {stuck}" if 0 < len(stuck) < STREAMS - gated else ""
        if gate.rescues > rescues:
            note = "a call waited until the guard opened the gate"
        name = f"{what} on other streams while {case}{words}"
        checks.fact(name, "cuStreamWaitValue32_v2", case, seen, ms=ms, note=note)


Arguments = Callable[[], tuple[object, ...]]


def _calls_beside_a_gate(checks: CudaChecks) -> None:
    """Calls while a stream waits; another thread opens its gate after 60 ms."""
    driver, gate, idle = checks.library, Gate(checks.library), checks.library.stream()
    shared, image = SharedMemory(4 * MIB), ctypes.create_string_buffer(PTX.encode())
    event, device, module = driver.event(), driver.allocate(MIB), driver.module(PTX)
    nothing = driver.launch_arguments()
    fresh = driver.function(module, "nothing")
    calls: tuple[tuple[str, str, Arguments], ...] = (
        ("cuStreamSynchronize", "another stream", lambda: (idle,)),
        ("cuEventRecord", "another stream", lambda: (event, idle)),
        ("cuEventSynchronize", "an event of another stream", lambda: (event,)),
        ("cuLaunchKernel", "another stream", lambda: (fresh, 1, 1, 1, 1, 1, 1, 0, idle, nothing, None)),
        ("cuLaunchKernel", "the default stream", lambda: (fresh, 1, 1, 1, 1, 1, 1, 0, None, nothing, None)),
        ("cuStreamSynchronize", "the default stream", lambda: (None,)),
        ("cuMemcpyDtoH_v2", "pageable", lambda: (ctypes.create_string_buffer(64), device, 64)),
        ("cuMemcpyHtoD_v2", "pageable", lambda: (device, ctypes.create_string_buffer(64), 64)),
        ("cuMemHostRegister_v2", "4 MiB", lambda: (shared.address, 4 * MIB, PORTABLE)),
        ("cuMemHostAlloc", "1 MiB", lambda: (REF(c_void_p()), MIB, PORTABLE)),
        ("cuMemHostUnregister", "4 MiB", lambda: (shared.address,)),
        ("cuMemAlloc_v2", "256 MiB", lambda: (REF(c_uint64()), 256 * MIB)),
        ("cuMemFree_v2", "memory that no stream uses", lambda: (driver.allocate(MIB),)),
        ("cuStreamCreate", "", lambda: (REF(c_void_p()), NON_BLOCKING)),
        ("cuStreamDestroy_v2", "an idle stream", lambda: (driver.stream(),)),
        ("cuModuleLoadData", "PTX", lambda: (REF(c_void_p()), ctypes.addressof(image))),
        ("cuModuleGetFunction", "an entry not used yet", lambda: (REF(c_void_p()), module, b"store_u32")),
        ("cuCtxSynchronize", "", lambda: ()),
    )
    for flags, kind in ((NON_BLOCKING, "non-blocking"), (0, "blocking")):
        stream = driver.stream(flags)
        for call, words, make in calls:
            if flags == 0 and "default stream" not in words and "pageable" not in words:
                continue
            name = f"{call} while a {kind} stream waits for the CPU" + (f", {words}" if words else "")
            _timed_call(checks, gate, stream, name, call, words, make)


def _timed_call(checks: CudaChecks, gate: Gate, stream: int, name: str, call: str, words: str, make: Arguments) -> None:
    values = make()
    gate.close(stream)
    timer = threading.Timer(WAITS_MS / 1000, gate.open)
    timer.start()
    try:
        expect = AT_ONCE if words == "another stream" and call != "cuLaunchKernel" else None
        checks.blocking(name, call, words, *values, busy_ms=WAITS_MS, expect=expect)
    finally:
        timer.join()
        checks.library.must("cuCtxSynchronize")


def _calls_on_the_gated_stream(checks: CudaChecks) -> None:
    """Calls that only queue, on the stream that waits."""
    driver, gate, stream = checks.library, Gate(checks.library), checks.library.stream()
    shared, device, event = SharedMemory(MIB), driver.allocate(MIB), driver.event()
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)
    calls: tuple[tuple[str, Arguments], ...] = (
        ("cuEventRecord", lambda: (event, stream)),
        ("cuMemcpyDtoHAsync_v2", lambda: (shared.address, device, MIB, stream)),
        ("cuMemcpyHtoDAsync_v2", lambda: (device, shared.address, MIB, stream)),
        ("cuMemsetD8Async", lambda: (device, 1, MIB, stream)),
        ("cuStreamWaitEvent", lambda: (stream, event, 0)),
        ("cuStreamSynchronize", lambda: (stream,)),
    )
    for call, make in calls:
        _timed_call(checks, gate, stream, f"{call} on the stream that waits", call, "", make)


def _many_behind_a_gate(checks: CudaChecks) -> None:
    """How many launches a stream that waits takes before a call blocks, and whether other threads block then."""
    driver, gate, stream, other = checks.library, Gate(checks.library), checks.library.stream(), checks.library.stream()
    open_ms, event, longest, blocked = 250.0, driver.event(), 0.0, [0]
    beside: list[float] = []
    stop = threading.Event()

    def elsewhere() -> None:
        driver.use()
        while not stop.is_set():
            start = time.perf_counter()
            driver.cuEventRecord(event, other)
            beside.append((time.perf_counter() - start) * 1000)
            time.sleep(0.002)

    gate.close(stream)
    timer = threading.Timer(open_ms / 1000, gate.open)
    thread = threading.Thread(target=elsewhere, daemon=True)
    timer.start()
    thread.start()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < open_ms / 1000 and count < 20_000:
        start = time.perf_counter()
        driver.launch("nothing", stream)
        longest = max(longest, (time.perf_counter() - start) * 1000)
        count += 1
        if longest > 20:
            blocked[0] = count
            break
    timer.join()
    stop.set()
    thread.join(5)
    driver.must("cuCtxSynchronize")
    seen = f"launch {blocked[0]} blocks" if blocked[0] else f"{count} launches, none blocks"
    note = f"longest launch {longest:.1f} ms; longest cuEventRecord of another thread {max(beside):.1f} ms"
    checks.fact("launches on a stream that waits for the CPU", "cuLaunchKernel", "", seen, note=note)


# ---- priorities


@dataclass
class _Load:
    """A kernel that fills every multiprocessor, wave after wave."""

    driver: Driver
    function: int
    processors: int
    cycles_per_ms: float = 1e6

    @classmethod
    def of(cls, driver: Driver) -> _Load:
        """Load the kernel and measure the clock."""
        processors = c_int()
        driver.must("cuDeviceGetAttribute", REF(processors), DEVICE_ATTRIBUTES["MULTIPROCESSOR_COUNT"], driver.device)
        load = cls(driver, driver.function(driver.module(BURN), "burn"), processors.value)
        stream, first, second, ms = driver.stream(), driver.event(0), driver.event(0), c_float()
        for _ in range(3):
            driver.must("cuEventRecord", first, stream)
            load.launch(stream, 1, 10.0)
            driver.must("cuEventRecord", second, stream)
            driver.synchronize(stream)
        driver.must("cuEventElapsedTime_v2", REF(ms), first, second)
        load.cycles_per_ms *= 10 / ms.value
        return load

    def launch(self, stream: int, waves: int, wave_ms: float) -> None:
        """Fill each multiprocessor ``waves`` times, for ``wave_ms`` each."""
        blocks = self.processors * (RESIDENT_THREADS // 1024) * waves
        arguments = self.driver.launch_arguments(c_uint64(int(wave_ms * self.cycles_per_ms)))
        code = self.driver.cuLaunchKernel(self.function, blocks, 1, 1, 1024, 1, 1, 0, stream, arguments, None)
        if code != 0:
            raise CallError(f"cuLaunchKernel: {self.driver.code_name(code)}", code)


def _priorities(checks: CudaChecks) -> None:
    """Small work on a second stream while a kernel occupies the GPU for 10 ms: does the priority help?"""
    driver = checks.library
    load, packer = _Load.of(driver), Packer(driver)
    checks.figure("clock under load", "%clock64", "", load.cycles_per_ms / 1000, "MHz")
    source, target, shared = driver.allocate(MIB), driver.allocate(MIB), SharedMemory(MIB)
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)
    table = packer.table([(source, 0, MIB // 4)], 1024)
    for words, low, high in (("equal", LEAST, LEAST), ("greater", LEAST, GREATEST)):
        busy, quick = _stream(driver, low), _stream(driver, high)
        pack = packer.launch(table, target, quick, "b32", blocks=132)
        small = packer.launch(table, target, quick, "b32", blocks=4)
        copy, back = (target, source, MIB, quick), (shared.address, source, MIB, quick)
        works: dict[str, Callable[[], object]] = {
            "an empty kernel": partial(driver.launch, "nothing", quick),
            "packing 1 MiB, 4 blocks": small,
            "packing 1 MiB, 132 blocks": pack,
            "a plain copy of 1 MiB": partial(driver.must, "cuMemcpyDtoDAsync_v2", *copy),
            "a copy of 1 MiB from the device": partial(driver.must, "cuMemcpyDtoHAsync_v2", *back),
        }
        for what, work in works.items():
            for waves, wave_ms in ((0, 0.0), (1000, 0.01), (100, 0.1), (10, 1.0), (1, 10.0)):
                times = [_beside_load(load, busy, quick, work, waves, wave_ms) for _ in range(9)]
                beside = f"{waves} waves of {wave_ms:g} ms" if waves else "an idle GPU"
                name = f"{what} beside {beside}, {words} priority"
                figure(checks, name, "cuStreamCreateWithPriority", f"{high} beside {low}", times[2:])


def _stream(driver: Driver, priority: int) -> int:
    made = c_void_p()
    driver.must("cuStreamCreateWithPriority", REF(made), NON_BLOCKING, priority)
    return made.value or 0


def _beside_load(load: _Load, busy: int, quick: int, work: Callable[[], object], waves: int, wave_ms: float) -> float:
    """Microseconds from the call to completion."""
    driver = load.driver
    event = driver.event()
    if waves:
        load.launch(busy, waves, wave_ms)
        running = time.perf_counter() + 0.002
        while time.perf_counter() < running:
            pass
    start = time.perf_counter()
    work()
    driver.must("cuEventRecord", event, quick)
    while driver.cuEventQuery(event) == Code.NOT_READY:
        pass
    us = (time.perf_counter() - start) * 1e6
    driver.must("cuCtxSynchronize")
    driver.must("cuEventDestroy_v2", event)
    return us
