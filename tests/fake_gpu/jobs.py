"""Jobs whose ranks have arrays on the fake device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fakes import CUDA, ROOT, nccl

from horocache.testing import Fault, run_ranks

FOLDERS = [str(ROOT), str(Path(__file__).parent)]


def on_device(
    function: Callable[[Any, Any], Any],
    ranks: int,
    *,
    check: bool = True,
    library: str = str(CUDA),
    knobs: Mapping[str, object] | None = None,
    faults: Iterable[Fault] = (),
    environment_of: Mapping[int, Mapping[str, str]] | None = None,
    **environment: object,
) -> list[Any]:
    """Run ``function(hc, arrays)`` on ranks with the fake driver; ``arrays`` is the module ``device_arrays``.

    ``environment_of`` has more variables of single ranks.
    """

    def rank(folders: list[str], more: Mapping[int, Mapping[str, str]]) -> Any:
        sys.path[:0] = folders
        os.environ.update(more.get(int(os.environ["HOROCACHE_RANK"]), {}))
        import device_arrays

        import horocache as hc

        hc.init(flight_record="off", log_level=os.environ.get("LEVEL", "fatal"))
        return function(hc, device_arrays)

    variables = {"HOROCACHE_CUDA_LIBRARY": library}
    variables |= {name: str(value) for name, value in environment.items()}
    call: dict[str, Any] = {"knobs": knobs, "environment": variables, "faults": faults, "check": check}
    return run_ranks(rank, ranks, args=(FOLDERS, environment_of or {}), **call)


def on_nccl(function: Callable[[Any, Any], Any], ranks: int, *, version: int = 23007, **options: Any) -> list[Any]:
    """Run ``function(hc, arrays)`` on ranks that share the fake device and use the fake NCCL."""
    options.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", 1)  # a real NCCL before 2.30 refuses two ranks on one GPU
    return on_device(function, ranks, HOROCACHE_NCCL_LIBRARY=nccl(version), **options)


def connect(arrays: Any) -> None:
    """Run an operation: NCCL connects the ranks, and the packing kernels are compiled, which waits for the device."""
    arrays.collectives.broadcast(arrays.DeviceArray.of([1.0]), 0, name="connects")


def error_of(call: Callable[[], Any]) -> tuple[str, str]:
    """The type and the text of the exception that a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", "nothing was raised"
