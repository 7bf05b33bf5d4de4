"""NVIDIA's own NCCL, on a machine without a GPU: it is found, loaded and asked, and refuses to connect the ranks.

``make test-nccl`` installs it. The driver is the fake one, so that there are tensors on a device.
"""

import os
import subprocess
import sys

import pytest
from jobs import error_of, on_device


def doctor(**environment):
    command = [sys.executable, "-m", "horocache.tools", "doctor"]
    # Its exit code is 1 where another library, MPI for example, is missing.
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=100, check=False
    )
    return [line for line in done.stdout.splitlines() if " NCCL " in line]


def test_doctor_names_the_library_and_its_version(library, wheel):
    for environment in ({"HOROCACHE_NCCL_LIBRARY": str(library)}, {"PYTHONPATH": str(wheel)}):
        (line,) = doctor(**environment)
        found, lacks = line.split("; ")
        assert found.split() == ["ok", "NCCL", "2.28.9", "at", str(library)]
        assert lacks.strip() == "lacks ranks that share a GPU (from 2.30.3)"


def reduce_twice(hc, arrays):
    tensor = arrays.DeviceArray.of([1.0, 2.0])
    reduced = [arrays.collectives.allreduce(tensor, op=hc.Sum, name=name).numpy().tolist() for name in "ab"]
    return reduced, arrays.calls("cuMemcpyHtoDAsync_v2") > 0


def test_ranks_that_nccl_refuses_to_connect_go_by_the_host(library):
    assert on_device(reduce_twice, 2, HOROCACHE_NCCL_LIBRARY=library) == [([[2.0, 4.0]] * 2, True)] * 2


def test_the_refusal_is_the_same_error_on_all_ranks_where_nccl_is_required(library):
    def run(hc, arrays):
        tensor = arrays.DeviceArray.of([1.0])
        return error_of(lambda: arrays.collectives.allreduce(tensor, name="a"))

    first, second = on_device(run, 2, HOROCACHE_NCCL_LIBRARY=library, HOROCACHE_NCCL="on")
    assert first == second
    name, text = first
    assert name == "UnsupportedError" and "ncclCommInitRankConfig failed with 1" in text, text
    # NCCL's own words, as it wrote them.
    assert "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'" in text, text


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_tensors_on_the_cpu_do_not_need_it(library, mode):
    def run(hc, arrays):
        import numpy as np

        return hc.allreduce(np.array([hc.rank() + 1.0]), op=hc.Sum, name="a").tolist()

    assert on_device(run, 2, HOROCACHE_NCCL_LIBRARY=library, HOROCACHE_NCCL=mode) == [[3.0]] * 2
