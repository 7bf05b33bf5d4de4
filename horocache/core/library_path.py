"""Folders in which packages of this Python environment install shared libraries that the core loads, such as MPI's."""

from __future__ import annotations

import site
import sys
from collections.abc import Iterator
from pathlib import Path

from horocache.base.paths import is_folder

_NCCL = Path("nvidia", "nccl", "lib")  # of the wheels nvidia-nccl-cu12 and -cu13, inside of a folder of packages


def library_path() -> str:
    """Return the folders, separated by colons, for the knob ``library_path``."""
    return ":".join(folders())


def folders() -> list[str]:
    """List the folders: the environment's, those of environments that it is layered on, the user's own, and NCCL's."""
    candidates = [*(prefix / "lib" for prefix in _prefixes()), *(Path(entry) / _NCCL for entry in sys.path)]
    return list(dict.fromkeys(str(folder) for folder in candidates if is_folder(folder)))


def _prefixes() -> Iterator[Path]:
    yield Path(sys.prefix)
    # An environment is layered on another one if the other's package folder, PREFIX/lib/python3.x/site-packages, is on
    # the path: by a .pth file, by PYTHONPATH, or as the system's.
    for entry in map(Path, sys.path):
        if entry.name in ("site-packages", "dist-packages") and len(entry.parents) > 2:
            yield entry.parents[2]
    yield Path(sys.base_prefix)
    yield Path(site.getuserbase())
