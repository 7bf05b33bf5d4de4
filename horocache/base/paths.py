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


def why_not_writable(path: Path) -> str | None:
    """Return why no file of this name can be written, or None. Nothing is made.

    For example, ``the folder X does not exist`` for ``X/table.json``.
    """
    folder = path.absolute().parent
    if is_folder(path):
        return "it is a folder; name a file"
    if not is_folder(folder):
        return f"the folder {folder} does not exist"
    try:
        path.stat()
        written = path
    except FileNotFoundError:
        written = folder
    except OSError as error:  # such as a name that is too long
        return error.strerror
    if not os.access(written, os.W_OK):
        return f"this user may not write to {written}"
    return None
