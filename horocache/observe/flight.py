"""How a live rank is asked for its flight record."""

from __future__ import annotations

import json
import re
import socket
import struct
from pathlib import Path
from typing import Any

import psutil

from horocache.errors import HorocacheError

_ABSTRACT = re.compile(r"@(horocache\.(\d+)\.\d+\.\d+)$")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_TIMEOUT_S = 5.0


class NoAnswerError(HorocacheError):
    """A rank does not tell about itself."""


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
