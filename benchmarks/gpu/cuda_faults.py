"""Calibration of the CUDA driver API: errors that kill a context, wrong handles, and the end of a process."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from ctypes import c_int, c_uint, c_uint64, c_void_p
from pathlib import Path

from benchmarks.gpu.cuda import PORTABLE, PTX, Code, SharedMemory
from benchmarks.gpu.session import CudaChecks, Helper, Session

REF = ctypes.byref
KIB, MIB = 1 << 10, 1 << 20


# ---- errors that stay


def faults(session: Session) -> None:
    """A kernel's fault, and the code of every call after it; each fault in a process of its own."""
    session.driver()
    for kind in FAULTS:
        outcome = session.helper("cuda_faults:fault", kind=kind).finish(20)
        session.recorder.add(f"process with {kind}", "", "", outcome.text, "exit status 0", outcome.seconds * 1000)


FAULTS: dict[str, tuple[str, tuple[c_uint64 | c_uint, ...], Code]] = {
    "a store outside": ("store_u32", (c_uint64(16), c_uint(1)), Code.ILLEGAL_ADDRESS),
    "a trap": ("trap_now", (), Code.LAUNCH_FAILED),
    "a misaligned store": ("store_u32", (c_uint64(0), c_uint(1)), Code.MISALIGNED_ADDRESS),
}


def fault(session: Session, kind: str) -> None:
    """One fault and the calls after it."""
    checks = session.cuda()
    driver, shared = checks.library, SharedMemory(MIB)
    name, arguments, expect = FAULTS[kind]
    stream, idle, done, pending = driver.stream(), driver.stream(), driver.event(), driver.event()
    device, target, registered = driver.allocate(MIB), driver.allocate(MIB), shared.address
    driver.must("cuMemHostRegister_v2", registered, MIB, PORTABLE)
    driver.must("cuEventRecord", done, idle)
    driver.synchronize(idle)
    if kind == "a misaligned store":
        arguments = (c_uint64(device + 2), c_uint(1))
    driver.busy(stream, 20)
    driver.must("cuEventRecord", pending, idle)
    code = driver.launch(name, stream, *arguments)
    checks.fact(f"launch of {kind}", "cuLaunchKernel", "behind a delay", driver.code_name(code), "CUDA_SUCCESS")
    driver.must("cuEventRecord", pending, stream)
    checks(f"query before {kind}", "cuEventQuery", "recorded after the kernel", pending, expect=Code.NOT_READY)
    deadline = time.monotonic() + 5
    while driver.cuEventQuery(pending) == Code.NOT_READY and time.monotonic() < deadline:
        time.sleep(0.001)
    checks(f"event behind {kind}", "cuEventQuery", "", pending, expect=expect)
    _calls_after(checks, kind, expect, (stream, idle, done, pending, device, target, registered))
    _recover(checks, kind)


def _calls_after(checks: CudaChecks, kind: str, expect: Code, values: tuple[int, ...]) -> None:
    driver = checks.library
    stream, idle, done, pending, device, target, registered = values
    launch = (driver.functions["nothing"], 1, 1, 1, 1, 1, 1, 0, idle, driver.launch_arguments(), None)
    extra = SharedMemory(KIB * 4)
    calls: tuple[tuple[str, tuple[object, ...], Code | None], ...] = (
        ("cuStreamQuery", (stream,), expect),
        ("cuStreamSynchronize", (stream,), expect),
        ("cuStreamQuery", (idle,), None),
        ("cuEventQuery", (done,), None),
        ("cuEventSynchronize", (pending,), expect),
        ("cuEventRecord", (done, idle), None),
        ("cuStreamWaitEvent", (idle, done, 0), None),
        ("cuMemcpyHtoDAsync_v2", (device, registered, 64, idle), expect),
        ("cuLaunchKernel", launch, expect),
        ("cuMemsetD8Async", (target, 1, 64, idle), expect),
        ("cuMemAlloc_v2", (REF(c_uint64()), KIB), expect),
        ("cuMemFree_v2", (target,), None),
        ("cuMemHostAlloc", (REF(c_void_p()), KIB, 1), None),
        ("cuMemHostRegister_v2", (extra.address, 4 * KIB, 1), None),
        ("cuMemHostUnregister", (registered,), None),
        ("cuStreamCreate", (REF(c_void_p()), 1), None),
        ("cuEventCreate", (REF(c_void_p()), 2), None),
        ("cuModuleLoadData", (REF(c_void_p()), ctypes.create_string_buffer(PTX.encode())), None),
        ("cuPointerGetAttribute", (REF(c_uint64()), 2, device), None),
        ("cuCtxGetCurrent", (REF(c_void_p()),), None),
        ("cuCtxSetCurrent", (driver.context,), None),
        ("cuCtxSynchronize", (), expect),
        ("cuEventDestroy_v2", (done,), None),
        ("cuStreamDestroy_v2", (stream,), None),
        ("cuDeviceGetCount", (REF(c_int()),), None),
    )
    for number, (call, arguments, code) in enumerate(calls):
        checks(f"{call} after {kind} ({number})", call, f"call {number} after the fault", *arguments, expect=code)


def _recover(checks: CudaChecks, kind: str) -> None:
    """Whether a new primary context works in the same process."""
    again = c_void_p()
    checks(f"release after {kind}", "cuDevicePrimaryCtxRelease_v2", "device 0", 0)
    checks(f"retain after {kind}", "cuDevicePrimaryCtxRetain", "device 0", REF(again), 0)
    checks(f"make current after {kind}", "cuCtxSetCurrent", "the new context", again)
    checks(f"allocate in the new context after {kind}", "cuMemAlloc_v2", "4096 bytes", REF(c_uint64()), 4 * KIB)


# ---- wrong handles: each in a process of its own, since a crash is likely


def hazards(session: Session) -> None:
    """Uses of destroyed and wrong handles, each in a process of its own, all at the same time."""
    session.driver()
    helpers: dict[str, Helper] = {}
    for name in HAZARDS:
        helpers[name] = session.helper("cuda_faults:hazard", name=name)
    for name, helper in helpers.items():
        outcome = helper.finish(20)
        session.recorder.add(f"process with {name}", "", name, outcome.text, None, outcome.seconds * 1000)
    session.run((_exit, _busy_end), session)


def hazard(session: Session, name: str) -> None:
    """One process of the section."""
    HAZARDS[name](session.cuda())


def _null_handles(checks: CudaChecks) -> None:
    stream = checks.library.stream()
    wrong = Code.INVALID_HANDLE
    checks("query NULL", "cuEventQuery", "NULL", None, expect=wrong)
    checks("record NULL", "cuEventRecord", "NULL", None, stream, expect=wrong)
    checks("wait for NULL", "cuStreamWaitEvent", "NULL", stream, None, 0, expect=wrong)
    checks("synchronize NULL", "cuEventSynchronize", "NULL", None, expect=wrong)
    checks("destroy NULL event", "cuEventDestroy_v2", "NULL", None, expect=wrong)
    checks("destroy NULL stream", "cuStreamDestroy_v2", "NULL", None)
    checks("function of NULL module", "cuModuleGetFunction", "NULL", REF(c_void_p()), None, b"nothing")
    arguments = (None, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
    checks("launch NULL", "cuLaunchKernel", "NULL", *arguments, expect=wrong)


def _destroyed_event(checks: CudaChecks) -> None:
    driver, stream, event = checks.library, checks.library.stream(), checks.library.event()
    driver.must("cuEventRecord", event, stream)
    driver.synchronize(stream)
    driver.must("cuEventDestroy_v2", event)
    checks("query a destroyed event", "cuEventQuery", "", event)
    checks("record a destroyed event", "cuEventRecord", "", event, stream)
    checks("wait for a destroyed event", "cuStreamWaitEvent", "", stream, event, 0)
    checks("destroy an event twice", "cuEventDestroy_v2", "", event)


def _destroyed_stream(checks: CudaChecks) -> None:
    driver, stream, event = checks.library, checks.library.stream(), checks.library.event()
    driver.must("cuStreamDestroy_v2", stream)
    checks("query a destroyed stream", "cuStreamQuery", "", stream)
    checks("record on a destroyed stream", "cuEventRecord", "", event, stream)
    checks("synchronize a destroyed stream", "cuStreamSynchronize", "", stream)
    checks("destroy a stream twice", "cuStreamDestroy_v2", "", stream)


def _garbage_handle(checks: CudaChecks) -> None:
    buffer = ctypes.create_string_buffer(4 * KIB)
    address = ctypes.addressof(buffer)
    checks("query a handle that is zeroed memory", "cuEventQuery", "4 KiB of zeros", address)
    checks("query a stream that is zeroed memory", "cuStreamQuery", "4 KiB of zeros", address)
    checks("query a handle outside all mappings", "cuEventQuery", "0xdead0", 0xDEAD0)


def _freed_device_copy(checks: CudaChecks) -> None:
    driver, stream, shared = checks.library, checks.library.stream(), SharedMemory(MIB)
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)
    freed = driver.allocate(64 * MIB)
    driver.must("cuMemFree_v2", freed)
    checks("copy to freed memory", "cuMemcpyHtoDAsync_v2", "", freed, shared.address, 64, stream)
    checks("copy from freed memory", "cuMemcpyDtoHAsync_v2", "", shared.address, freed, 64, stream)
    checks("memset freed memory", "cuMemsetD8Async", "", freed, 1, 64, stream)
    checks("stream after freed memory", "cuStreamSynchronize", "", stream)


def _freed_untyped_copy(checks: CudaChecks) -> None:
    driver, stream, shared = checks.library, checks.library.stream(), SharedMemory(MIB)
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)
    freed = driver.allocate(64 * MIB)
    driver.must("cuMemFree_v2", freed)
    checks("untyped copy to freed memory", "cuMemcpyAsync", "", freed, shared.address, 64, stream)
    checks("stream after the untyped copy", "cuStreamSynchronize", "", stream)


def _copy_past_the_end(checks: CudaChecks) -> None:
    driver, stream, shared = checks.library, checks.library.stream(), SharedMemory(64 * MIB)
    driver.must("cuMemHostRegister_v2", shared.address, 64 * MIB, PORTABLE)
    device = driver.allocate(4 * MIB)
    for words, size in (("1 byte", 4 * MIB + 1), ("60 MiB", 64 * MIB)):
        checks(f"copy {words} past the end", "cuMemcpyHtoDAsync_v2", "", device, shared.address, size, stream)
        checks(f"memset {words} past the end", "cuMemsetD8Async", "", device, 1, size, stream)
        checks(f"stream after {words} past the end", "cuStreamSynchronize", "", stream)
    small = driver.allocate(512)
    checks("copy past the end of 512 bytes", "cuMemcpyHtoDAsync_v2", "1024 bytes", small, shared.address, 1024, stream)
    checks("stream after 1024 bytes", "cuStreamSynchronize", "", stream)


def _missing_arguments(checks: CudaChecks) -> None:
    driver, stream = checks.library, checks.library.stream()
    arguments = (driver.functions["spin_ns"], 1, 1, 1, 1, 1, 1, 0, stream, None, None)
    checks("launch without its arguments", "cuLaunchKernel", "kernelParams NULL", *arguments)
    checks("stream after the launch", "cuStreamQuery", "", stream)


def _unloaded_module(checks: CudaChecks) -> None:
    driver, stream = checks.library, checks.library.stream()
    module = driver.module(PTX)
    function = driver.function(module, "nothing")
    driver.must("cuModuleUnload", module)
    arguments = (function, 1, 1, 1, 1, 1, 1, 0, stream, driver.launch_arguments(), None)
    checks("launch of an unloaded module", "cuLaunchKernel", "", *arguments)
    checks("unload twice", "cuModuleUnload", "", module)


def _unmapped_registration(checks: CudaChecks) -> None:
    driver, stream, device = checks.library, checks.library.stream(), checks.library.allocate(MIB)
    library = ctypes.CDLL(None)
    library.mmap.restype, library.munmap.argtypes = c_void_p, (c_void_p, ctypes.c_size_t)
    library.mmap.argtypes = (c_void_p, ctypes.c_size_t, c_int, c_int, c_int, ctypes.c_long)
    address = library.mmap(None, MIB, 3, 0x21, -1, 0)  # PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS
    driver.must("cuMemHostRegister_v2", address, MIB, PORTABLE)
    checks.fact("unmap registered memory", "munmap", "", library.munmap(address, MIB))
    checks("copy to unmapped memory", "cuMemcpyDtoHAsync_v2", "still registered", address, device, KIB, stream)
    checks("stream after that copy", "cuStreamSynchronize", "", stream)
    checks("unregister unmapped memory", "cuMemHostUnregister", "", address)


def _released_context(checks: CudaChecks) -> None:
    driver, stream, event = checks.library, checks.library.stream(), checks.library.event()
    driver.busy(stream, 100)
    driver.must("cuEventRecord", event, stream)
    words = "a stream is busy"
    checks.blocking("release while busy", "cuDevicePrimaryCtxRelease_v2", words, 0, busy_ms=100)
    checks("query an event of a released context", "cuEventQuery", "", event)
    checks("query a stream of a released context", "cuStreamQuery", "", stream)


def _parallel_threads(checks: CudaChecks) -> None:
    """Four threads use one stream and one event at once: the driver API is thread-safe."""
    driver, stream, event, failures = checks.library, checks.library.stream(), checks.library.event(), list[int]()
    device, shared = driver.allocate(MIB), SharedMemory(MIB)
    driver.must("cuMemHostRegister_v2", shared.address, MIB, PORTABLE)

    def body() -> None:
        driver.use()
        for _ in range(500):
            codes = (
                driver.cuMemcpyHtoDAsync_v2(device, shared.address, KIB, stream),
                driver.cuEventRecord(event, stream),
                driver.cuStreamWaitEvent(stream, event, 0),
            )
            failures.extend(code for code in codes if code != 0)
            if driver.cuEventQuery(event) not in (0, Code.NOT_READY):
                failures.append(1)

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    checks.fact("four threads on one stream", "cuMemcpyHtoDAsync_v2 and others", "500 rounds", len(failures), "0")


def _exit_of_a_fork_child(checks: CudaChecks) -> None:
    """A child of fork ends with exit, which runs libcuda's destructors, and not with _exit."""
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).exit(0)
    deadline, status = time.monotonic() + 8, -1
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(pid, 9)
        status = -1
    seen = f"wait status {status}"
    checks.fact("fork child ends with exit", "exit", "a primary context is active", seen, "wait status 0")
    checks("parent afterwards", "cuMemAlloc_v2", "", REF(c_uint64()), KIB, expect=Code.SUCCESS)


HAZARDS: dict[str, Callable[[CudaChecks], None]] = {
    "NULL handles": _null_handles,
    "a destroyed event": _destroyed_event,
    "a destroyed stream": _destroyed_stream,
    "handles that are none": _garbage_handle,
    "copies of freed memory": _freed_device_copy,
    "an untyped copy of freed memory": _freed_untyped_copy,
    "copies past the end": _copy_past_the_end,
    "a launch without arguments": _missing_arguments,
    "an unloaded module": _unloaded_module,
    "unmapped registered memory": _unmapped_registration,
    "a released context": _released_context,
    "four threads": _parallel_threads,
    "a fork child that calls exit": _exit_of_a_fork_child,
}


# ---- the end of a process

EXIT_PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void* library;
static void* event;

static int call(const char* name, void* argument) {
  int (*function)(void*) = (int (*)(void*))dlsym(library, name);
  return function ? function(argument) : -1;
}

static void late(void) {
  void* result = NULL;
  printf("cuCtxGetCurrent %d\n", call("cuCtxGetCurrent", &result));
  printf("cuEventQuery %d\n", call("cuEventQuery", event));
  printf("cuEventDestroy_v2 %d\n", call("cuEventDestroy_v2", event));
  fflush(stdout);
}

int main(int count, char** arguments) {
  void* context = NULL;
  atexit(late); /* before dlopen: runs after the handlers that libcuda registers */
  library = dlopen(arguments[count - 1], RTLD_NOW | RTLD_GLOBAL);
  if (!library) return 5;
  int (*initialize)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
  int (*retain)(void**, int) = (int (*)(void**, int))dlsym(library, "cuDevicePrimaryCtxRetain");
  int (*create)(void**, unsigned) = (int (*)(void**, unsigned))dlsym(library, "cuEventCreate");
  if (initialize(0) || retain(&context, 0) || call("cuCtxSetCurrent", context) || create(&event, 2)) return 6;
  return 0;
}
"""


def _exit(session: Session) -> None:
    """Calls from an exit handler that runs after libcuda's own."""
    record = session.recorder.add
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        record("calls at exit", "", "", "unchecked: no C compiler")
        return
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "late.c"), Path(folder, "late")
        source.write_text(EXIT_PROGRAM)
        built = subprocess.run(
            [compiler, "-o", str(program), str(source), "-ldl"], capture_output=True, text=True, timeout=30, check=False
        )
        if built.returncode != 0:
            record("calls at exit", compiler, "", "unchecked: the program does not compile", note=built.stderr)
            return
        ran = subprocess.run([str(program), session.cuda_path], capture_output=True, text=True, timeout=20, check=False)
    record("process that calls at exit", "", "", f"exit status {ran.returncode}", note=ran.stderr)
    driver = session.driver()
    for line in ran.stdout.splitlines():
        name, code = line.split()
        expect = "CUDA_ERROR_DEINITIALIZED"
        record(f"{name} at exit", name, "after libcuda's own exit handlers", driver.code_name(int(code)), expect)


def _busy_end(session: Session) -> None:
    """How long a process takes to end while its stream is busy."""
    for how in ("_exit", "SIGKILL"):
        helper = session.helper("cuda_faults:end_while_busy", how=how)
        outcome = helper.finish(20)
        name = f"process that ends by {how} while a stream is busy for 1500 ms"
        session.recorder.add(name, how, "", outcome.text, None, outcome.seconds * 1000)


def end_while_busy(session: Session, how: str) -> None:
    """Start 1.5 s of device work and end."""
    checks = session.cuda()
    stream = checks.library.stream()
    checks.library.busy(stream, 1500)
    time.sleep(0.05)
    checks.fact(f"before the end by {how}", "", "", "stream busy", note=f"{time.monotonic():.3f}")
    if how == "SIGKILL":
        os.kill(os.getpid(), 9)
    os._exit(0)
