"""Run the conformance cases as one process of a job, and print a line for each operation.

    horocacherun -np 2 python tests/conformance/run_cases.py --backend shm
    mpiexec -n 3 python tests/conformance/run_cases.py --backend mpi --only gatherv
    horocacherun -np 2 python tests/conformance/run_cases.py --cuda build/dev/tests/fake_gpu/libcuda_fake.so.1
    HOROCACHE_NCCL=on horocacherun -np 1 python tests/conformance/run_cases.py --cuda libcuda.so.1 --backend nccl

The exit code is 1 if a rank got a wrong result; the first failure is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import calls
from cases import CASES

import horocache as hc
from horocache.user_backends import register_backend

TESTS = Path(__file__).resolve().parents[1]
# Small, so that the large tensors of the cases are many tiles.
KNOBS = {"shm_tile": 4096}


def leave_out_tensors_of_the_cpu() -> None:
    """For the backend ``nccl``: tensors of bfloat16, which NumPy lacks, are torch's, on the CPU."""
    calls.DTYPES = tuple(dtype for dtype in calls.DTYPES if dtype != "bfloat16")


# Backends in Python run nothing while ranks have joined.
LEFT_OUT = {"star": ("joined",), "gloo": ("joined",)}


def register(backend: str | None) -> None:
    """Register the backends in Python by their names."""
    if backend == "star":
        from star_backend import Star

        register_backend("star", Star)
    elif backend == "gloo":
        register_backend("gloo")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", help="the backend under test; the selector's choice by default")
    parser.add_argument("--only", choices=sorted(CASES), action="append", help="these cases only")
    parser.add_argument("--cuda", metavar="LIBRARY", help="CUDA tensors, with this driver")
    arguments = parser.parse_args()
    package: Any = hc
    if arguments.cuda:
        os.environ["HOROCACHE_CUDA_LIBRARY"] = arguments.cuda
        sys.path[:0] = [str(TESTS.parent), str(TESTS / "fake_gpu")]
        from device_arrays import OnDevice

        package = OnDevice(hc)
    if arguments.backend == "nccl":
        leave_out_tensors_of_the_cpu()
    register(arguments.backend)
    hc.init(**KNOBS)
    for operation, case in CASES.items():
        if (arguments.only and operation not in arguments.only) or operation in LEFT_OUT.get(arguments.backend, ()):
            continue
        begin = time.monotonic()
        try:
            checks = case(package, arguments.backend)
        except Exception as error:
            sys.stderr.write(
                f"FAILED on rank {hc.rank()} of {hc.size()}: {operation}: {type(error).__name__}: {error}\n"
            )
            hc.abort(f"{operation} does not conform on rank {hc.rank()}")
            return 1
        if hc.rank() == 0:
            print(f"{operation:<15} {checks:5} checks  {time.monotonic() - begin:6.2f} s", flush=True)
    hc.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
