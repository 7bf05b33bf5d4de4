"""Checks of paths that may be inaccessible: below a folder of another user, or with a name that is too long."""

from __future__ import annotations

import os
from pathlib import Path


def is_file(path: Path) -> bool:
    """Return True if the path is a file; False if that cannot be determined, where ``Path.is_file`` raises."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Return True if the path is a folder; False if that cannot be determined, where ``Path.is_dir`` raises."""
    return os.path.isdir(path)  # noqa: PTH112
