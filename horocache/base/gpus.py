"""The number of GPUs that a process can use, without loading the CUDA driver."""

from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")  # has a folder for each GPU


def count_gpus(visible: str | None, driver: Path = _DRIVER) -> int:
    """Return the number of NVIDIA GPUs of this host that a process with ``CUDA_VISIBLE_DEVICES=visible`` can use.

    The driver takes the listed devices up to the first that does not exist. A device that is named and not numbered
    counts, whether it exists or not.
    """
    try:
        installed = sum(1 for _ in driver.iterdir())
    except OSError:  # no driver
        return 0
    if visible is None:
        return installed
    count = 0
    for device in visible.split(","):
        name = device.strip()
        exists = int(name) < installed if name.isdecimal() else name.startswith(("GPU-", "MIG-"))
        if not exists:
            break
        count += 1
    return count
