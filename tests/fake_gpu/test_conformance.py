"""Every operation on CUDA tensors agrees with NumPy, on 1 to 4 ranks with the fake driver."""

import sys
from pathlib import Path

import pytest
from fakes import CUDA, ROOT, nccl

from horocache.testing import run_ranks

FOLDERS = [str(ROOT), str(Path(__file__).parent), str(ROOT / "tests" / "conformance")]


def conform(folders, backend):
    sys.path[:0] = folders
    from device_arrays import OnDevice
    from run_cases import CASES, KNOBS, leave_out_tensors_of_the_cpu

    import horocache as hc

    if backend == "nccl":
        leave_out_tensors_of_the_cpu()
    hc.init(**KNOBS)
    return {operation: case(OnDevice(hc), backend) for operation, case in CASES.items()}


@pytest.mark.parametrize(
    ("backend", "ranks"),
    [("loopback", 1), *((backend, ranks) for backend in ("shm", "nccl") for ranks in (1, 2, 3, 4))],
)
def test_every_operation_on_the_device_agrees_with_numpy(backend, ranks):
    # Work of streams begins late, so that what does not wait for it reads old values. The ranks share the device.
    environment = {"FAKE_GPU_DELAY_US": "20", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    knobs = {"cuda_library": str(CUDA), "nccl_library": str(nccl(23007)), "nccl": "on"}
    answers = run_ranks(conform, ranks, args=(FOLDERS, backend), knobs=knobs, environment=environment, timeout=200)
    assert all(checks > 0 for answer in answers for checks in answer.values()), answers
    assert all(answer == answers[0] for answer in answers), "ranks made different numbers of checks"
