"""The tools of a section of the calibration: the libraries, the recorder, and helper processes of its own."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.cuda import Driver
from benchmarks.gpu.nccl import Nccl
from benchmarks.gpu.record import Checks, Recorder, UnavailableError, run_groups

SCRIPT = Path(__file__).with_name("calibrate.py")
CudaChecks = Checks[Driver]
NcclChecks = Checks[Nccl]


@dataclass
class Outcome:
    """How a helper process ended."""

    status: int | None  # exit status; negative: the signal that ended it; None: killed after its time limit
    seconds: float

    @property
    def text(self) -> str:
        """In words."""
        if self.status is None:
            return f"killed after {self.seconds:.0f} s"
        return f"exit status {self.status}" if self.status >= 0 else f"died of {signal.Signals(-self.status).name}"


@dataclass
class Helper:
    """A helper process that runs."""

    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)

    def finish(self, limit_s: float) -> Outcome:
        """Wait until the helper ends; kill it ``limit_s`` after its start."""
        try:
            self.process.wait(max(0.1, self.started + limit_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            return Outcome(None, limit_s)
        return Outcome(self.process.returncode, time.monotonic() - self.started)

    def kill(self) -> None:
        """Kill the helper with SIGKILL, and give the driver a few seconds to take it apart."""
        self.process.kill()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            print(f"process {self.process.pid} does not end", flush=True)


@dataclass
class Session:
    """A section's process, or one of its helper processes."""

    recorder: Recorder
    rows: str
    cuda_path: str
    nccl_path: str

    def driver(self) -> Driver:
        """libcuda, not initialized.

        Raises:
            UnavailableError: it cannot be loaded.
        """
        return Driver(self.cuda_path)

    def cuda(self, kernels: bool = True) -> CudaChecks:
        """Checks of libcuda with the primary context of device 0 current.

        Raises:
            UnavailableError: libcuda or a device is missing.
        """
        driver = self.driver()
        driver.start()
        if kernels:
            driver.load_kernels()
            driver.warm_up()
        return Checks(self.recorder, driver)

    def nccl(self) -> NcclChecks:
        """Checks of libnccl.

        Raises:
            UnavailableError: it cannot be loaded.
        """
        return Checks(self.recorder, Nccl(self.nccl_path))

    def run(self, groups: tuple[Callable[..., None], ...], *arguments: Any) -> None:
        """Run groups of checks."""
        run_groups(self.recorder, groups, *arguments)

    def helper(self, function: str, environment: dict[str, str] | None = None, **arguments: Any) -> Helper:
        """Start ``module:function`` in a process of its own; its rows go to the same file."""
        command = [
            *(sys.executable, str(SCRIPT), "--helper", function, "--arguments", json.dumps(arguments)),
            *("--section", self.recorder.section, "--rows", self.rows),
            *("--cuda", self.cuda_path, "--nccl", self.nccl_path),
        ]
        descriptors = [value for name, value in arguments.items() if name == "descriptor"]
        return Helper(
            subprocess.Popen(command, env={**os.environ, **(environment or {})}, pass_fds=descriptors, close_fds=True)
        )


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL), 0, 0, 0)


def call_by_name(name: str) -> Callable[..., None]:
    """The function that ``module:function`` names, in this folder."""
    module, function = name.split(":")
    return getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)  # type: ignore[no-any-return]


def run_child(session: Session, name: str, arguments: dict[str, Any]) -> int:
    """Run a section or a helper; 0 if it came to its end, 3 if a library or device is missing."""
    try:
        call_by_name(name)(session, **arguments)
    except UnavailableError as error:
        libraries = f"{session.cuda_path}, {session.nccl_path}"
        session.recorder.add("load", "dlopen, cuInit", libraries, str(error), "loaded")
        return 3
    return 0
