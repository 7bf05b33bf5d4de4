"""Looks at files that may be out of reach: below a folder of another user, or with a name that is too long."""

from __future__ import annotations

import os
from pathlib import Path


def is_file(path: Path) -> bool:
    """Return whether there is a file; False where it cannot be told, for which ``Path.is_file`` raises."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Return whether there is a folder; False where it cannot be told, for which ``Path.is_dir`` raises."""
    return os.path.isdir(path)  # noqa: PTH112
