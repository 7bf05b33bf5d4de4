"""Files of flight records: where they are written, and how they are read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from horocache.errors import InvalidArgumentError

_MOST_KEPT = 256
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
    return name.startswith("flight-") and name.endswith(".json")


def _is_unfinished(name: str) -> bool:
    return name.startswith("flight-") and name.endswith(".json.new")


def load(path: Path) -> dict[str, Any]:
    """Read a record from a file.

    Raises:
        InvalidArgumentError: it cannot be read, or is none.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgumentError(f"'{path}' is no flight record: {error}") from error
    if not isinstance(record, dict) or not {"horocache", "rank", "events", "pending"} <= record.keys():
        raise InvalidArgumentError(f"'{path}' is no flight record")
    return record
