"""The default folder of flight records, and the removal of old records."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

_MOST_KEPT = 256  # records
_RECORD = re.compile(r"flight-[\w.-]*-rank\d+\.json", re.ASCII)
# Seconds after which an unfinished record is removed: its rank was killed while it wrote the record.
_UNFINISHED_S = 3600.0


def default_folder(environment: Mapping[str, str]) -> str:
    """Return the default folder, which is below the user's state folder; removes old records if there are many."""
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
        return str(folder)  # it does not exist yet, or belongs to another user, which the write of a record will show
    return str(folder)


def _is_record(name: str) -> bool:
    return _RECORD.fullmatch(name) is not None


def _is_unfinished(name: str) -> bool:
    return name.endswith(".new") and _is_record(name.removesuffix(".new"))
