"""CUDA tensors by NCCL between simulated hosts, on the fakes: the conformance cases, or a rank that dies.

Arguments: the hosts, the libraries for CUDA and NCCL, and one of ``ENDS``.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from common import expect_error, pretend_hosts

LAYOUT, CUDA, NCCL, WHAT = sys.argv[1:]
TESTS = Path(__file__).resolve().parents[2]
OPERATIONS = ("allreduce", "allgather", "alltoall", "broadcast", "reducescatter")
sys.path[:0] = [str(TESTS.parent), str(TESTS / "conformance"), str(TESTS / "fake_gpu")]
pretend_hosts(LAYOUT)
os.environ |= {"HOROCACHE_CUDA_LIBRARY": CUDA, "HOROCACHE_NCCL_LIBRARY": NCCL, "HOROCACHE_NCCL": "on"}
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")  # the fake device is one

import horocache as hc  # noqa: E402


def dies(backend: str | None = None) -> int:
    """The last rank ends when the others wait for it in NCCL; they print the error that they get."""
    import device_arrays as arrays

    hc.init()
    tensor = arrays.DeviceArray.of([1.0] * 1000)
    arrays.collectives.allreduce(tensor, op=hc.Sum, name="connects", backend=backend)
    last = hc.rank() == hc.size() - 1
    gate = arrays.Gate() if last else None
    late = arrays.DeviceArray.of([1.0] * 1000) if last else tensor
    handle = arrays.collectives.allreduce_async(late, op=hc.Sum, name="x", backend=backend)
    arrays.wait_for("ncclAllReduce" if backend is None else "ncclReduce", 2)
    try:
        hc.barrier()
        if gate is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        hc.synchronize(handle, block=True)
    except hc.PeerLostError as error:
        aborts = arrays.calls("ncclCommAbort")
        print(f"lost {hc.rank()} after {aborts} abort: {' '.join(str(error).split())}", flush=True)
        return 7
    return 0


def conforms() -> int:
    """Some conformance cases."""
    import run_cases

    chosen = [argument for operation in OPERATIONS for argument in ("--only", operation)]
    sys.argv[1:] = ["--backend", "nccl", "--cuda", CUDA, *chosen]
    return run_cases.main()


def queued(arrays: Any) -> int:
    """Operations in one and in two levels behind each other."""
    handles, size = [], hc.size()
    for turn in range(40):
        backend = "nccl/twolevel" if turn % 3 else "nccl"
        tensor = arrays.DeviceArray.of([float(turn + hc.rank())] * (turn * 997 + 1))
        handles.append(arrays.collectives.allreduce_async(tensor, op=hc.Sum, name=f"q{turn}", backend=backend))
    for turn, handle in enumerate(handles):
        expected = size * turn + size * (size - 1) / 2
        assert (hc.synchronize(handle).numpy() == expected).all(), (turn, expected)
    return len(handles)


def special(arrays: Any) -> int:
    """Factors, results in place, nothing to send, operations without a second level, and ranks that have joined."""
    import numpy as np

    rank, size = hc.rank(), hc.size()
    add = functools.partial(arrays.collectives.allreduce_, op=hc.Sum, backend="nccl/twolevel")
    tensor = arrays.DeviceArray.of([rank + 1.0, 2.0])
    add(tensor, name="scaled", prescale_factor=2.0, postscale_factor=0.5)
    assert tensor.numpy().tolist() == [size * (size + 1) / 2, 2.0 * size]
    # The factor is 1 in float16, in which NCCL would multiply.
    large = arrays.DeviceArray.of(np.full(5 << 19, 1.90625, np.float16))
    add(large, name="large", postscale_factor=1.0004)
    of_hosts = [np.float16(1.90625 * LAYOUT.count(host) * 1.0004) for host in sorted(set(LAYOUT))]
    assert set(large.numpy().tolist()) == {np.sum(of_hosts, dtype=np.float32).astype(np.float16)} != {size * 1.90625}
    nothing = [arrays.DeviceArray.of([]), arrays.DeviceArray.of([])]
    sums = arrays.collectives.grouped_allreduce(nothing, op=hc.Sum, name="nothing", backend="nccl/twolevel")
    assert [total.numpy().tolist() for total in sums] == [[], []]
    for call in (lambda: hc.barrier(backend="nccl/twolevel"), lambda: send(arrays)):
        expect_error(hc.UnsupportedError, "nccl/twolevel runs allreduce, not b", call)
    if rank > 0:
        late = arrays.DeviceArray.of([1.0])
        add(late, name="joined")
        assert late.numpy().tolist() == [size - 1.0]
    hc.join()
    return 6


def send(arrays: Any) -> None:
    arrays.collectives.broadcast(arrays.DeviceArray.of([1.0]), 0, name="sent", backend="nccl/twolevel")


def levels() -> int:
    """Allreduces in two levels: NCCL runs inside the hosts only, and MPI between them."""
    import device_arrays as arrays
    import numpy as np

    hc.init()
    rank, size = hc.rank(), hc.size()
    here = [other for other in range(size) if LAYOUT[other] == LAYOUT[rank]]
    checks = 0
    for dtype in ("float32", "float64", "int32", "uint8", "int16", "float16"):
        assert arrays.calls("ncclAllReduce") == 0, "NCCL reduces between hosts"
        for op, function in ((hc.Sum, np.sum), (hc.Average, np.mean), (hc.Max, np.max), (hc.Product, np.prod)):
            for counts in ((1,), (70_001, 3), (0, 5, 300_000)):
                tensors = [[(np.arange(count) % 3 + other).astype(dtype) for count in counts] for other in range(size)]
                group = [arrays.DeviceArray.of(tensor) for tensor in tensors[rank]]
                name = f"{dtype}.{op}.{len(counts)}"
                results = arrays.collectives.grouped_allreduce(group, op=op, name=name, backend="nccl/twolevel")
                for result, *given in zip(results, *tensors, strict=True):
                    expected = function(np.array(given, np.float64), axis=0).astype(dtype)
                    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-2 if dtype == "float16" else 1e-6)
                    checks += 1
    connected = arrays.calls("ncclCommInitRankConfig")
    checks += queued(arrays) + special(arrays)
    print(f"levels {rank}: {checks} checks, leads {rank == here[0]}, {connected} connection", flush=True)
    return 0


def refused() -> int:
    """NCCL refuses the ranks of one host; all ranks print the errors that they get."""
    import device_arrays as arrays
    import numpy as np

    hc.init()
    add = functools.partial(arrays.collectives.allreduce_async, op=hc.Sum, backend="nccl/twolevel")
    # NCCL has no part in the second one, which comes behind the first.
    handles = [add(arrays.DeviceArray.of([1.0]), name="x"), add(arrays.DeviceArray.of(np.ones(1, np.int16)), name="y")]
    for handle in handles:
        try:
            hc.synchronize(handle, block=True)
        except hc.HorocacheError as error:
            print(f"error {hc.rank()} {' '.join(str(error).split())}", flush=True)
    return 0


ENDS = {
    "conforms": conforms,
    "dies": dies,
    "dies in levels": lambda: dies("nccl/twolevel"),
    "levels": levels,
    "refused": refused,
}
sys.exit(ENDS[WHAT]())
