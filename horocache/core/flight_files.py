"""Where flight records are written."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

_MOST_KEPT = 256
_RECORD = re.compile(r"flight-[\w.-]*-rank\d+\.json", re.ASCII)
# A record that is not whole after so long, in seconds, is of a rank that was killed while it wrote it.
_UNFINISHED_S = 3600.0


def default_folder(environment: Mapping[str, str]) -> str:
    """Where the user's programs keep what they want to remember; old records go when there are many."""
    state = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111  (needs no home)
    folder = Path(state) / "horocache"
    try:
        records = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(folder) if _is_record(entry.name)]
        for _, path in sorted(records)[:-_MOST_KEPT]:
            Path(path).unlink(missing_ok=True)
        begun = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(folder) if _is_unfinished(entry.name)]
        for at, path in begun:
            if time.time() - at > _UNFINISHED_S:
                Path(path).unlink(missing_ok=True)
    except OSError:
        return str(folder)  # there is none yet, or it is not ours to clean; writing will tell
    return str(folder)


def _is_record(name: str) -> bool:
    return _RECORD.fullmatch(name) is not None


def _is_unfinished(name: str) -> bool:
    return name.endswith(".new") and _is_record(name.removesuffix(".new"))
