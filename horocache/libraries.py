"""Where packages of this Python environment put shared libraries that the core loads when it runs, such as MPI's."""

from __future__ import annotations

import site
import sys
from pathlib import Path


def library_path() -> str:
    """Folders for the knob ``library_path``, separated by colons: the environment's, then the user's own."""
    places = [sys.prefix, sys.base_prefix, site.getuserbase()]
    folders = [str(Path(place) / "lib") for place in places if place]
    return ":".join(dict.fromkeys(folder for folder in folders if Path(folder).is_dir()))
