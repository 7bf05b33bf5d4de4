"""``device_steps.py CUDA NCCL STEPS``: fused allreduces of arrays on the fake device, for counting instructions."""

import gc
import importlib
import os
import sys
from pathlib import Path

import horocache as hc


def main(cuda: str, nccl: str, steps: int) -> None:
    """Run the steps on one rank. Each is launched by the thread that waits for it.

    Args:
        cuda: path of the fake CUDA driver. nccl: path of the fake NCCL.
        steps: number of steps.
    """
    os.environ |= {"HOROCACHE_CUDA_LIBRARY": cuda, "HOROCACHE_NCCL_LIBRARY": nccl, "HOROCACHE_NCCL": "on"}
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fake_gpu"))
    device_arrays = importlib.import_module("device_arrays")
    hc.init()
    group = [device_arrays.DeviceArray.of([1.0] * 1000) for _ in range(161)]
    gc.disable()
    for _ in range(steps):
        hc.synchronize(device_arrays.collectives.grouped_allreduce_async_(group, op=hc.Sum, name="gradients"))
    print(len(group))
    hc.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
