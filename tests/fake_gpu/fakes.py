"""Where the fake libraries are, and processes that use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "dev" / "tests" / "fake_gpu"
CUDA = FOLDER / "libcuda_fake.so.1"


def nccl(version: int = 22809) -> Path:
    """The fake NCCL with the functions of a version, for example 22809 for 2.28.9."""
    return FOLDER / f"libnccl_fake_{version}.so.2"


PROLOGUE = f"""
import ctypes, json, os, struct, sys, threading, time
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
sys.path.insert(0, {str(ROOT)!r})
from benchmarks.gpu.cuda import Driver, SharedMemory, Code, PORTABLE, WAIT_GEQ
from benchmarks.gpu.nccl import Nccl, Rank, TYPE, OPERATIONS

def fakes():
    library = ctypes.CDLL(driver.path)
    library.fake_gpu_calls.restype = c_uint64
    library.fake_gpu_broken_rules.restype = c_uint64
    library.fake_gpu_broken_rules.argtypes = (ctypes.c_char_p, c_size_t)
    return library

def calls(name):
    return fakes().fake_gpu_calls(name.encode())

def broken_rules():
    text = ctypes.create_string_buffer(4096)
    return fakes().fake_gpu_broken_rules(text, 4096), text.value.decode()

def ledger():
    text = ctypes.create_string_buffer(4096)
    fakes().fake_gpu_ledger(text, 4096)
    return json.loads(text.value)

driver = Driver({str(CUDA)!r})
nccl = Nccl(os.environ["FAKE_NCCL"])
"""


def run(code: str, nccl_version: int = 22809, **environment: object) -> subprocess.CompletedProcess[str]:
    """Run a program that has ``driver`` and ``nccl``, the libraries by ctypes."""
    text = PROLOGUE + textwrap.dedent(code)
    variables = {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "FAKE_NCCL": str(nccl(nccl_version)), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def answer(code: str, nccl_version: int = 22809, **environment: object) -> object:
    """The last line that a program prints, as JSON."""
    done = run(code, nccl_version, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])
