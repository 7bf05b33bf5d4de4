"""Calibration of the CUDA driver API: streams, events, what waits for a busy stream, lazy and eager loading."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from ctypes import c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from benchmarks.gpu.cuda import (
    BLOCKING_SYNC,
    DISABLE_TIMING,
    INTERPROCESS,
    NON_BLOCKING,
    PORTABLE,
    PTX,
    PTX_HEADER,
    Code,
    HostFunction,
    SharedMemory,
)
from benchmarks.gpu.record import AT_ONCE, WAITS
from benchmarks.gpu.session import CudaChecks, Session

REF = ctypes.byref
KIB, MIB = 1 << 10, 1 << 20
BUSY_MS = 60.0


# ---- streams and events


def handles(session: Session) -> None:
    """Streams and events: states, waits, re-recording, destruction while pending, priorities, default stream."""
    checks = session.cuda()
    session.run((_event_states, _elapsed, _record_again, _waits), checks)
    session.run((_destroy_pending, _stream_states, _default_stream, _parallel), checks)


def _event_states(checks: CudaChecks) -> None:
    driver, made = checks.library, c_void_p()
    event, stream = driver.event(), driver.stream()
    checks("query before any record", "cuEventQuery", "an event never recorded", event, expect=Code.SUCCESS)
    words = "an event never recorded"
    checks("synchronize before any record", "cuEventSynchronize", words, event, expect=Code.SUCCESS)
    checks("wait before any record", "cuStreamWaitEvent", words, stream, event, 0, expect=Code.SUCCESS)
    checks("stream after that wait", "cuStreamQuery", "", stream, expect=Code.SUCCESS)
    driver.busy(stream, BUSY_MS)
    checks("record on a busy stream", "cuEventRecord", "", event, stream, expect=Code.SUCCESS)
    checks("query while pending", "cuEventQuery", "stream busy", event, expect=Code.NOT_READY)
    checks.blocking("synchronize while pending", "cuEventSynchronize", "", event, busy_ms=BUSY_MS, expect=WAITS)
    checks("query after completion", "cuEventQuery", "", event, expect=Code.SUCCESS)
    checks("wait with unknown flags", "cuStreamWaitEvent", "flags 4", stream, event, 4, expect=Code.INVALID_VALUE)
    flags = {
        "default": (0, Code.SUCCESS),
        "BLOCKING_SYNC": (BLOCKING_SYNC, Code.SUCCESS),
        "INTERPROCESS alone": (INTERPROCESS, Code.INVALID_VALUE),
        "INTERPROCESS and DISABLE_TIMING": (INTERPROCESS | DISABLE_TIMING, Code.SUCCESS),
        "unknown": (64, Code.INVALID_VALUE),
    }
    for words, (value, expect) in flags.items():
        checks(f"create with {words}", "cuEventCreate", f"flags {value}", REF(made), value, expect=expect)
    checks("destroy", "cuEventDestroy_v2", "an idle event", event, expect=Code.SUCCESS)


def _elapsed(checks: CudaChecks) -> None:
    driver, ms, call = checks.library, c_float(), "cuEventElapsedTime_v2"
    stream, first, second, third = driver.stream(), driver.event(0), driver.event(0), driver.event(0)
    plain = driver.event(DISABLE_TIMING)
    driver.must("cuEventRecord", first, stream)
    driver.must("cuEventRecord", plain, stream)
    driver.busy(stream, BUSY_MS)
    driver.must("cuEventRecord", second, stream)
    checks("elapsed while pending", call, "the second event pending", REF(ms), first, second, expect=Code.NOT_READY)
    driver.synchronize(stream)
    note = lambda: f"{ms.value:.3f} ms for a delay of {BUSY_MS:g} ms"  # noqa: E731
    checks("elapsed", call, "both complete", REF(ms), first, second, expect=Code.SUCCESS, note=note)
    checks("elapsed backwards", call, "second, first", REF(ms), second, first, expect=Code.SUCCESS, note=note)
    checks("elapsed with timing disabled", call, "", REF(ms), first, plain, expect=Code.INVALID_HANDLE)
    checks("elapsed never recorded", call, "", REF(ms), first, third, expect=Code.INVALID_HANDLE)


def _record_again(checks: CudaChecks) -> None:
    driver, event = checks.library, checks.library.event()
    slow, idle, waiter = driver.stream(), driver.stream(), driver.stream()
    driver.busy(slow, BUSY_MS)
    driver.must("cuEventRecord", event, slow)
    driver.must("cuStreamWaitEvent", waiter, event, 0)
    words = "recorded on a busy stream, then on an idle stream"
    checks("record again while pending", "cuEventRecord", words, event, idle, expect=Code.SUCCESS)
    time.sleep(0.005)
    checks("query after recording again", "cuEventQuery", words, event, expect=Code.SUCCESS)
    checks("waiter of the first record", "cuStreamQuery", words, waiter, expect=Code.NOT_READY)
    driver.synchronize(slow)
    time.sleep(0.005)
    checks("waiter after the first record is complete", "cuStreamQuery", words, waiter, expect=Code.SUCCESS)


def _waits(checks: CudaChecks) -> None:
    driver, event = checks.library, checks.library.event()
    slow, waiter = driver.stream(), driver.stream()
    driver.busy(slow, BUSY_MS)
    driver.must("cuEventRecord", event, slow)
    arguments = (waiter, event, 0)
    words = "an event of a busy stream"
    checks.blocking("a stream waits", "cuStreamWaitEvent", words, *arguments, busy_ms=BUSY_MS, expect=AT_ONCE)
    checks("waiting stream", "cuStreamQuery", "", waiter, expect=Code.NOT_READY)
    later = driver.event()
    driver.must("cuEventRecord", later, waiter)
    checks("event behind a wait", "cuEventQuery", "recorded after cuStreamWaitEvent", later, expect=Code.NOT_READY)
    checks("waiting stream is done", "cuStreamSynchronize", "", waiter, expect=Code.SUCCESS)
    checks("the other stream is done then", "cuStreamQuery", "", slow, expect=Code.SUCCESS)
    checks("a stream waits for itself", "cuStreamWaitEvent", "its own event", waiter, later, 0, expect=Code.SUCCESS)
    checks("stream that waited for itself", "cuStreamSynchronize", "", waiter, expect=Code.SUCCESS)


def _destroy_pending(checks: CudaChecks) -> None:
    driver, shared = checks.library, SharedMemory(4 * KIB)
    event, slow, waiter, target = driver.event(), driver.stream(), driver.stream(), driver.allocate(4 * KIB)
    driver.must("cuMemHostRegister_v2", shared.address, 4 * KIB, PORTABLE)
    driver.busy(slow, BUSY_MS)
    driver.must("cuEventRecord", event, slow)
    driver.must("cuStreamWaitEvent", waiter, event, 0)
    words = "stream busy, another stream waits for it"
    checks.blocking("destroy a pending event", "cuEventDestroy_v2", words, event, busy_ms=BUSY_MS, expect=AT_ONCE)
    checks("waiter of the destroyed event", "cuStreamQuery", "", waiter, expect=Code.NOT_READY)
    driver.must("cuMemsetD8Async", target, 9, 4 * KIB, slow)
    driver.must("cuMemcpyDtoHAsync_v2", shared.address, target, 4 * KIB, slow)
    words = "a delay, a memset and a copy pending"
    checks.blocking("destroy a busy stream", "cuStreamDestroy_v2", words, slow, busy_ms=BUSY_MS, expect=AT_ONCE)
    time.sleep(2 * BUSY_MS / 1000)
    checks.fact("work of the destroyed stream", "cuStreamDestroy_v2", words, shared.read(0, 4).hex(), "09090909")
    checks("waiter at the end", "cuStreamQuery", "", waiter, expect=Code.SUCCESS)


def _stream_states(checks: CudaChecks) -> None:
    driver, made, least, greatest, value = checks.library, c_void_p(), c_int(), c_int(), c_int()
    stream = driver.stream()
    driver.busy(stream, BUSY_MS)
    checks("query a busy stream", "cuStreamQuery", "", stream, expect=Code.NOT_READY)
    checks.blocking("synchronize a busy stream", "cuStreamSynchronize", "", stream, busy_ms=BUSY_MS, expect=WAITS)
    checks("query an idle stream", "cuStreamQuery", "", stream, expect=Code.SUCCESS)
    note = lambda: f"{least.value} to {greatest.value}"  # noqa: E731
    checks("priorities", "cuCtxGetStreamPriorityRange", "", REF(least), REF(greatest), expect=Code.SUCCESS, note=note)
    for words, priority in (("greatest", greatest.value), ("too great", -100), ("too small", 100)):
        call = "cuStreamCreateWithPriority"
        checks(f"priority {words}", call, f"{priority}", REF(made), NON_BLOCKING, priority, expect=Code.SUCCESS)
        driver.must("cuStreamGetPriority", made, REF(value))
        checks.fact(f"priority {words}, as created", "cuStreamGetPriority", f"{priority}", value.value)
    flags = c_uint()
    checks("flags of a stream", "cuStreamGetFlags", "NON_BLOCKING", stream, REF(flags), note=lambda: str(flags.value))
    checks("unknown flags", "cuStreamCreate", "8", REF(made), 8, expect=Code.INVALID_VALUE)


def _default_stream(checks: CudaChecks) -> None:
    """The legacy default stream waits for blocking streams and they for it; it ignores non-blocking streams."""
    driver, event, target = checks.library, checks.library.event(), checks.library.allocate(4 * KIB)
    for words, flags, expect in (("blocking", 0, Code.NOT_READY), ("non-blocking", NON_BLOCKING, Code.SUCCESS)):
        stream = driver.stream(flags)
        driver.busy(stream, BUSY_MS)
        driver.must("cuMemsetD8Async", target, 1, 4, None)
        driver.must("cuEventRecord", event, None)
        time.sleep(0.01)
        checks(f"default stream beside a busy {words} stream", "cuEventQuery", "a memset", event, expect=expect)
        driver.must("cuCtxSynchronize")
        driver.busy(0, BUSY_MS)
        driver.must("cuMemsetD8Async", target, 1, 4, stream)
        driver.must("cuEventRecord", event, stream)
        time.sleep(0.01)
        checks(f"{words} stream beside the busy default stream", "cuEventQuery", "a memset", event, expect=expect)
        driver.must("cuCtxSynchronize")
    for words, value in (("CU_STREAM_LEGACY", 1), ("CU_STREAM_PER_THREAD", 2)):
        checks(f"query {words}", "cuStreamQuery", f"handle {value}", value, expect=Code.SUCCESS)
        checks(f"record on {words}", "cuEventRecord", f"handle {value}", event, value, expect=Code.SUCCESS)


def _parallel(checks: CudaChecks) -> None:
    driver = checks.library
    streams = [driver.stream() for _ in range(4)]
    start = time.perf_counter()
    for stream in streams:
        driver.busy(stream, BUSY_MS)
    for stream in streams:
        driver.synchronize(stream)
    ms = (time.perf_counter() - start) * 1000
    seen = "together" if ms < 1.6 * BUSY_MS else "one after the other"
    checks.fact("kernels of four streams", "cuLaunchKernel", f"{BUSY_MS:g} ms each", seen, "together", ms=ms)


# ---- what waits for a busy stream


def asynchrony(session: Session) -> None:
    """Copies, allocation and other calls while a stream is busy; calls beside a call that waits; host functions."""
    checks = session.cuda()
    session.run((_copies, _source_reuse, _calls_beside, _calls_behind_a_waiting_call), checks)
    session.run((_host_function, _host_functions_in_turn), checks)


def _copies(checks: CudaChecks) -> None:
    driver, stream, size = checks.library, checks.library.stream(), MIB
    device, second = driver.allocate(size), driver.allocate(size)
    plain, shared = ctypes.create_string_buffer(size), SharedMemory(size)
    driver.must("cuMemHostRegister_v2", shared.address, size, PORTABLE)
    host = {"pageable": ctypes.addressof(plain), "registered": shared.address, "pinned": driver.pinned(size)}
    for kind, address in host.items():
        for count in (4 * KIB, 64 * KIB, 128 * KIB, MIB):
            words, pinned = f"{count // KIB} KiB, {kind}", kind != "pageable"
            driver.busy(stream, BUSY_MS)
            arguments = (device, address, count, stream)
            expect = AT_ONCE if pinned else None
            checks.blocking(
                f"to the device, {words}", "cuMemcpyHtoDAsync_v2", words, *arguments, busy_ms=BUSY_MS, expect=expect
            )
            driver.synchronize(stream)
            driver.busy(stream, BUSY_MS)
            back = (address, device, count, stream)
            expect = AT_ONCE if pinned else WAITS
            checks.blocking(
                f"from the device, {words}", "cuMemcpyDtoHAsync_v2", words, *back, busy_ms=BUSY_MS, expect=expect
            )
            driver.synchronize(stream)
    driver.busy(stream, BUSY_MS)
    arguments = (second, device, size, stream)
    checks.blocking("on the device", "cuMemcpyAsync", "1 MiB", *arguments, busy_ms=BUSY_MS, expect=AT_ONCE)
    checks.blocking("memset", "cuMemsetD8Async", "1 MiB", second, 1, size, stream, busy_ms=BUSY_MS, expect=AT_ONCE)
    driver.synchronize(stream)


def _source_reuse(checks: CudaChecks) -> None:
    """When a copy to the device reads its source: at the call, or when the stream comes to it."""
    driver, stream, size = checks.library, checks.library.stream(), 4 * KIB
    device, plain, shared = driver.allocate(size), ctypes.create_string_buffer(size), SharedMemory(size)
    driver.must("cuMemHostRegister_v2", shared.address, size, PORTABLE)
    for kind, address, expect in (
        ("pageable", ctypes.addressof(plain), "the old bytes"),
        ("registered", shared.address, "the new bytes"),
    ):
        ctypes.memset(address, 1, size)
        driver.busy(stream, BUSY_MS)
        driver.must("cuMemcpyHtoDAsync_v2", device, address, size, stream)
        ctypes.memset(address, 2, size)
        driver.synchronize(stream)
        arrived = driver.download(device, 1)
        seen = "the old bytes" if arrived == b"\1" else "the new bytes" if arrived == b"\2" else arrived.hex()
        words = f"{kind} source changed after the call, stream busy"
        checks.fact(f"what a copy from {kind} memory reads", "cuMemcpyHtoDAsync_v2", words, seen, expect)


Call = tuple[str, str, tuple[object, ...], "str | None"]


def _calls(checks: CudaChecks) -> list[Call]:
    """Calls that might wait for a busy stream: call, words, arguments, expectation."""
    driver, made, pointer, number = checks.library, c_void_p(), c_uint64(), c_size_t()
    idle, event, device = driver.stream(), driver.event(), driver.allocate(MIB)
    first, second = SharedMemory(MIB), SharedMemory(MIB)
    driver.must("cuMemHostRegister_v2", first.address, MIB, PORTABLE)
    driver._keep += [first, second]
    module = driver.module(PTX)
    image = ctypes.create_string_buffer(PTX.encode())
    driver._keep.append(image)
    return [
        ("cuCtxGetCurrent", "", (REF(made),), AT_ONCE),
        ("cuStreamQuery", "an idle stream", (idle,), AT_ONCE),
        ("cuEventRecord", "an idle stream", (event, idle), AT_ONCE),
        ("cuEventQuery", "an idle event", (event,), AT_ONCE),
        ("cuEventSynchronize", "an idle event", (event,), AT_ONCE),
        ("cuEventCreate", "", (REF(c_void_p()), 2), None),
        ("cuEventDestroy_v2", "an idle event", (driver.event(),), None),
        ("cuStreamCreate", "", (REF(c_void_p()), NON_BLOCKING), None),
        ("cuStreamDestroy_v2", "an idle stream", (driver.stream(),), None),
        ("cuMemcpyHtoDAsync_v2", "idle stream, registered", (device, first.address, KIB, idle), AT_ONCE),
        ("cuMemcpyHtoD_v2", "pageable", (device, ctypes.create_string_buffer(64), 64), None),
        ("cuMemcpyDtoH_v2", "pageable", (ctypes.create_string_buffer(64), device, 64), None),
        ("cuMemsetD8Async", "idle stream", (device, 1, KIB, idle), AT_ONCE),
        ("cuMemGetInfo_v2", "", (REF(number), REF(c_size_t())), None),
        ("cuMemAlloc_v2", "1 MiB", (REF(pointer), MIB), None),
        ("cuMemAlloc_v2", "256 MiB", (REF(c_uint64()), 256 * MIB), None),
        ("cuMemFree_v2", "memory that no stream uses", (driver.allocate(64 * MIB),), WAITS),
        ("cuMemFree_v2", "a small piece", (driver.allocate(512),), None),
        ("cuMemHostAlloc", "1 MiB", (REF(c_void_p()), MIB, PORTABLE), None),
        ("cuMemFreeHost", "1 MiB", (driver.pinned(MIB),), None),
        ("cuMemHostRegister_v2", "1 MiB", (second.address, MIB, PORTABLE), None),
        ("cuMemHostUnregister", "1 MiB", (second.address,), None),
        ("cuModuleLoadData", "PTX", (REF(c_void_p()), ctypes.addressof(image)), None),
        ("cuModuleGetFunction", "an entry not used yet", (REF(c_void_p()), module, b"nothing"), None),
        ("cuModuleUnload", "a module that no stream uses", (module,), None),
        ("cuCtxSynchronize", "", (), WAITS),
    ]


def _calls_beside(checks: CudaChecks) -> None:
    driver, stream = checks.library, checks.library.stream()
    for call, words, arguments, expect in _calls(checks):
        driver.busy(stream, BUSY_MS)
        name = f"{call} while another stream is busy" + (f", {words}" if words else "")
        checks.blocking(name, call, words, *arguments, busy_ms=BUSY_MS, expect=expect)
        driver.synchronize(stream)


def _calls_behind_a_waiting_call(checks: CudaChecks) -> None:
    """One thread is inside a call that waits for a busy stream; does that hold up other threads' calls?"""
    driver, stream = checks.library, checks.library.stream()
    busy_ms, shared = 80.0, SharedMemory(MIB)
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)
    waiting: dict[str, Callable[[], tuple[object, ...]]] = {
        "cuStreamSynchronize": lambda: (stream,),
        "cuCtxSynchronize": lambda: (),
        "cuMemFree_v2": lambda: (driver.allocate(MIB),),
        "cuMemcpyDtoH_v2": lambda: (ctypes.create_string_buffer(64), driver.allocate(64), 64),
    }
    wanted = ("cuEventRecord", "cuEventQuery", "cuMemcpyHtoDAsync_v2", "cuMemAlloc_v2", "cuMemsetD8Async")
    for waiter, make in waiting.items():
        calls = [entry for entry in _calls(checks) if entry[0] in wanted and entry[1] != "256 MiB"]
        for call, words, arguments, _ in calls:
            values = make()
            if waiter == "cuMemcpyDtoH_v2":  # waits only if it is on the same stream: the default stream, here
                driver.busy(0, busy_ms)
            driver.busy(stream, busy_ms)

            def body(waiter: str = waiter, values: tuple[object, ...] = values) -> None:
                driver.use()
                getattr(driver, waiter)(*values)

            thread = threading.Thread(target=body, daemon=True)
            thread.start()
            time.sleep(0.01)
            name = f"{call} while another thread is in {waiter}"
            checks.blocking(name, call, words, *arguments, busy_ms=busy_ms - 10)
            thread.join(10)
            driver.must("cuCtxSynchronize")


def _host_function(checks: CudaChecks) -> None:
    """CUDA calls within a host function."""
    driver, stream, event, codes = checks.library, checks.library.stream(), checks.library.event(), dict[str, int]()
    pointer, current, done = c_uint64(), c_void_p(), threading.Event()

    def body(argument: int | None) -> None:
        codes["argument"] = argument or 0
        codes["cuCtxGetCurrent"] = driver.cuCtxGetCurrent(REF(current))
        codes["cuEventQuery"] = driver.cuEventQuery(event)
        codes["cuMemAlloc_v2"] = driver.cuMemAlloc_v2(REF(pointer), 64)
        codes["cuDriverGetVersion"] = driver.cuDriverGetVersion(REF(c_int()))
        done.set()

    function = HostFunction(body)
    checks("host function", "cuLaunchHostFunc", "argument 42", stream, function, 42, expect=Code.SUCCESS)
    finished = done.wait(5)
    checks.fact("host function runs", "cuLaunchHostFunc", "", finished, "True")
    checks.fact("argument of the host function", "cuLaunchHostFunc", "", codes.pop("argument", None), "42")
    for name, code in codes.items():
        expected = {"cuEventQuery": "CUDA_SUCCESS", "cuMemAlloc_v2": "CUDA_ERROR_NOT_PERMITTED"}  # as measured
        expect = expected.get(name)
        checks.fact(f"{name} in a host function", name, "", driver.code_name(code), expect)
    checks("stream after the host function", "cuStreamSynchronize", "", stream, expect=Code.SUCCESS)


def _host_functions_in_turn(checks: CudaChecks) -> None:
    driver, first, second = checks.library, checks.library.stream(), checks.library.stream()
    slow = HostFunction(lambda _: time.sleep(BUSY_MS / 1000))
    quick = HostFunction(lambda _: None)
    driver.must("cuLaunchHostFunc", first, slow, None)
    driver.must("cuLaunchHostFunc", second, quick, None)
    start = time.perf_counter()
    driver.synchronize(second)
    ms = (time.perf_counter() - start) * 1000
    seen = "one after the other" if ms > BUSY_MS / 2 else "together"
    checks.fact("host functions of two streams", "cuLaunchHostFunc", f"one sleeps {BUSY_MS:g} ms", seen, ms=ms)
    driver.synchronize(first)


# ---- loading


def loading(session: Session) -> None:
    """Modules: time, errors, and whether a first use waits for a busy stream. Run with lazy and with eager loading."""
    checks = session.cuda(kernels=False)
    session.run((_load, _first_uses, _wrong_images, _wrong_launches), checks)


def _load(checks: CudaChecks) -> None:
    mode, module, image = c_int(), c_void_p(), ctypes.create_string_buffer(PTX.encode())
    note = lambda: {1: "eager", 2: "lazy"}.get(mode.value, str(mode.value))  # noqa: E731
    checks("loading mode", "cuModuleGetLoadingMode", "", REF(mode), expect=Code.SUCCESS, note=note)
    address = ctypes.addressof(image)
    for words in ("first", "again"):
        checks(f"load PTX, {words}", "cuModuleLoadData", "4 kernels", REF(module), address, expect=Code.SUCCESS)
    checks.library.load_kernels()


def _first_uses(checks: CudaChecks) -> None:
    """The delay kernel has run; everything else is used for the first time while it runs."""
    driver, stream, idle, function = checks.library, checks.library.stream(), checks.library.stream(), c_void_p()
    module, device, second, shared = driver.module(PTX), driver.allocate(MIB), driver.allocate(MIB), SharedMemory(MIB)
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)
    nothing = driver.launch_arguments()
    driver.busy(stream, BUSY_MS)
    words = "an entry of another module"
    arguments: tuple[object, ...] = (REF(function), module, b"nothing")
    checks.blocking("get a function", "cuModuleGetFunction", words, *arguments, busy_ms=BUSY_MS)
    driver.synchronize(stream)
    for times in ("first", "second"):
        driver.busy(stream, BUSY_MS)
        arguments = (function, 1, 1, 1, 1, 1, 1, 0, idle, nothing, None)
        checks.blocking(f"{times} launch of a function", "cuLaunchKernel", words, *arguments, busy_ms=BUSY_MS)
        driver.synchronize(stream)
    uses: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("cuMemsetD8Async", (device, 1, MIB, idle)),
        ("cuMemsetD32Async", (device, 1, MIB // 4, idle)),
        ("cuMemcpyDtoDAsync_v2", (second, device, MIB, idle)),
        ("cuMemcpyHtoDAsync_v2", (device, shared.address, MIB, idle)),
        ("cuMemcpyDtoHAsync_v2", (shared.address, device, MIB, idle)),
    )
    for call, arguments in uses:
        for times in ("first", "second"):
            driver.busy(stream, BUSY_MS)
            checks.blocking(f"{times} {call}", call, "another stream busy", *arguments, busy_ms=BUSY_MS)
            driver.must("cuCtxSynchronize")


def _wrong_images(checks: CudaChecks) -> None:
    module, function, driver = c_void_p(), c_void_p(), checks.library
    entry = "\n.visible .entry nothing()\n{\n  ret;\n}\n"
    images = {
        "no PTX at all": ("this is not PTX\n", Code.INVALID_IMAGE),
        "PTX with an unknown instruction": (PTX_HEADER + entry.replace("ret", "frobnicate"), Code.INVALID_PTX),
        "PTX version 99.0": (PTX_HEADER.replace("7.0", "99.0") + entry, Code.UNSUPPORTED_PTX_VERSION),
        "PTX for sm_120": (".version 8.7\n.target sm_120\n.address_size 64\n" + entry, None),
        "PTX for sm_999": (PTX_HEADER.replace("sm_70", "sm_999") + entry, None),
        "an empty text": ("", None),
    }
    for words, (text, expect) in images.items():
        image = ctypes.create_string_buffer(text.encode() + bytes(64))
        checks(f"load {words}", "cuModuleLoadData", words, REF(module), ctypes.addressof(image), expect=expect)
    checks("load NULL", "cuModuleLoadData", "NULL", REF(module), None, expect=Code.INVALID_VALUE)
    good = driver.module(PTX)
    arguments = (REF(function), good, b"no_such_kernel")
    checks("unknown entry", "cuModuleGetFunction", "no_such_kernel", *arguments, expect=Code.NOT_FOUND)
    arguments = (REF(function), good, b"nothing")
    checks("a good module afterwards", "cuModuleGetFunction", "nothing", *arguments, expect=Code.SUCCESS)
    checks("unload", "cuModuleUnload", "", good, expect=Code.SUCCESS)


def _wrong_launches(checks: CudaChecks) -> None:
    driver, stream = checks.library, checks.library.stream()
    function, nothing = driver.functions["nothing"], driver.launch_arguments()
    shapes = {
        "a grid of 0": (0, 1, 1, 1, 1, 1, 0),
        "a block of 0": (1, 1, 1, 0, 1, 1, 0),
        "a block of 2048": (1, 1, 1, 2048, 1, 1, 0),
        "a grid too large": (1 << 31, 1, 1, 1, 1, 1, 0),
        "a grid too large in y": (1, 1 << 16, 1, 1, 1, 1, 0),
        "1 MiB of shared memory": (1, 1, 1, 1, 1, 1, MIB),
    }
    for words, shape in shapes.items():
        arguments = (function, *shape, stream, nothing, None)
        checks(f"launch with {words}", "cuLaunchKernel", words, *arguments, expect=Code.INVALID_VALUE)
    arguments = (function, 1, 1, 1, 1, 1, 1, 0, stream, nothing, None)
    checks("a good launch afterwards", "cuLaunchKernel", "", *arguments, expect=Code.SUCCESS)
    checks("stream afterwards", "cuStreamSynchronize", "", stream, expect=Code.SUCCESS)
