"""Flight records: where they are written, and how a live rank is asked for its own."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from horocache.errors import HorocacheError, InvalidArgumentError

_MOST_KEPT = 256
_ABSTRACT = re.compile(r"@(horocache\.(\d+)\.\d+\.\d+)$")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_TIMEOUT_S = 5.0


class NoAnswerError(HorocacheError):
    """A rank does not tell about itself."""


def default_folder(environment: Mapping[str, str]) -> str:
    """Where the user's programs keep what they want to remember; old records go when there are many."""
    state = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111  (needs no home)
    folder = Path(state) / "horocache"
    try:
        records = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(folder) if _is_record(entry.name)]
        for _, path in sorted(records)[:-_MOST_KEPT]:
            Path(path).unlink(missing_ok=True)
    except OSError:
        return str(folder)  # there is none yet, or it is not ours to clean; writing will tell
    return str(folder)


def _is_record(name: str) -> bool:
    return name.startswith("flight-") and name.endswith(".json")


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


def ranks_of(pid: int) -> dict[int, list[str]]:
    """The sockets of the ranks in process ``pid``, or, if it has none, in those that it has started, by process.

    Raises:
        NoAnswerError: there is no such process, or no rank in it that this user may ask.
    """
    sockets: dict[int, list[str]] = {}
    for line in Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines():
        if found := _ABSTRACT.search(line):
            names = sockets.setdefault(int(found.group(2)), [])
            if found.group(1) not in names:
                names.append(found.group(1))
    if pid in sockets:
        return {pid: sockets[pid]}
    try:
        started = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        raise NoAnswerError(f"there is no process {pid} here") from None
    ranks = {child: sockets[child] for child in started if child in sockets}
    if not ranks:
        raise NoAnswerError(f"process {pid} is no rank of horocache, nor has it started one that runs here")
    return ranks


def ask(pid: int, name: str) -> dict[str, Any]:
    """Have a live rank tell about itself; ``name`` is one of :func:`ranks_of`.

    Raises:
        NoAnswerError: it is gone, stopped, of another user, or not who it should be.
    """
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_TIMEOUT_S)
            asking.connect("\0" + name)
            peer = _CREDENTIALS.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            if peer[0] != pid:
                raise NoAnswerError(f"process {peer[0]} answers in the name of process {pid}")
            answer = b"".join(iter(lambda: asking.recv(1 << 16), b""))
    except OSError as error:
        raise NoAnswerError(f"process {pid} does not answer (stopped?): {error}") from error
    if not answer:
        raise NoAnswerError(f"process {pid} tells nothing: it belongs to another user")
    record: dict[str, Any] = json.loads(answer)
    return record
