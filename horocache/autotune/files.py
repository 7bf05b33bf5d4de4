"""The files of autotune: the log of samples, and the result that a later job takes."""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from horocache.autotune.space import Value
from horocache.base.untrusted_text import pointer_first, printable, read_regular_file
from horocache.errors import InvalidArgumentError

_logger = logging.getLogger("horocache.autotune")
_MAX_FILE_BYTES = 1 << 16
_LIMITS: dict[str, tuple[float, float]] = {
    "fusion_threshold": (0, 1 << 32),
    "cycle_time": (0, 1000),
    "cache": (0, 1),
    "num_groups": (0, 1 << 20),
    "table": (0, 1),
    "hierarchical_allreduce": (0, 1),
    "hierarchical_allgather": (0, 1),
}


class Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of autotune.

    Attributes:
        format, version: what the file is.
        settings: the tuned settings by name; bytes, milliseconds, numbers of groups, and 0 or 1 for switches.
        bytes_per_second: the score of these settings.
        default_bytes_per_second: the score of the default.
    """

    settings: dict[str, int | float]
    bytes_per_second: float
    default_bytes_per_second: float
    format: Literal["horocache.autotune"] = "horocache.autotune"
    version: Literal[1] = 1


def save(saved: Saved, path: str | os.PathLike[str]) -> None:
    """Write a result to a file atomically. Raises OSError."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(saved)) + b"\n")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> dict[str, Value]:
    """Read the settings of a result.

    Raises:
        InvalidArgumentError: the file cannot be read, or a setting is unknown or out of its range; the message names
            the file and the place in it.
    """
    try:
        contents = read_regular_file(path, _MAX_FILE_BYTES)
        settings = msgspec.json.decode(contents, type=Saved).settings
    except msgspec.MsgspecError as error:
        raise _bad(path, pointer_first(str(error))) from None
    except ValueError as error:
        raise _bad(path, str(error)) from None
    for name, value in settings.items():
        if name not in _LIMITS:
            raise _bad(path, f"/settings has {name!r}; there are {', '.join(_LIMITS)}.")
        low, high = _LIMITS[name]
        whole = name == "cycle_time" or isinstance(value, int)
        if not low <= value <= high or not whole:
            raise _bad(
                path, f"/settings/{name} is {value}; it is {'' if whole else 'a whole number '}from {low} to {high}."
            )
    return dict(settings)


def _bad(path: str | os.PathLike[str], said: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"autotune file {printable(os.fspath(path))}: {printable(said[:500])}")


class Log:
    """The CSV file of samples; each row is in the file as soon as it is written, so that a killed job leaves them.

    A file that cannot be written is a warning, and gets no more rows: the search does not need it.

    Role: used by one thread.
    """

    def __init__(self, path: str, names: Sequence[str]) -> None:
        """Create the file, with the heading ``sample,score,step_ms`` and the settings; an empty path makes none."""
        self._path = Path(path) if path else None
        self._number = 0
        self._write("w", ["sample", "score", "step_ms", *names])

    def add(self, score: float, step_s: float, values: Sequence[Value]) -> None:
        """Append a sample: bytes per second, seconds per step, and the settings."""
        self._number += 1
        self._write("a", [self._number, f"{score:.6g}", f"{step_s * 1e3:.6g}", *values])

    def _write(self, mode: str, values: Sequence[object]) -> None:
        if self._path is None:
            return
        try:
            with self._path.open(mode, encoding="utf-8") as file:
                file.write(self._row(values))
        except OSError as error:
            _logger.warning("autotune: the log of samples ends: %s", error)
            self._path = None

    @staticmethod
    def _row(values: Sequence[object]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)
        return text.getvalue()
