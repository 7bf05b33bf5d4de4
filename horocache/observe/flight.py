"""Asks a running rank for its flight record."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from horocache.errors import HorocacheError
from horocache.observe.records import MOST_BYTES, Record, decode

_ABSTRACT = re.compile(r"@(horocache\.(\d+)\.\d+\.\d+)$")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_TIMEOUT_S = 5.0  # seconds for one rank, until the end of its answer
_MOST_RUNTIMES = 64  # of one process; any user can create sockets with such names


class NoAnswerError(HorocacheError):
    """A rank gives no flight record."""


def ranks_here() -> dict[int, list[str]]:
    """Return the sockets of all ranks in this network namespace, of any user, by process id."""
    sockets: dict[int, list[str]] = {}
    for line in Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines():
        if found := _ABSTRACT.search(line):
            names = sockets.setdefault(int(found.group(2)), [])
            if found.group(1) not in names and len(names) < _MOST_RUNTIMES:
                names.append(found.group(1))
    return sockets


def ranks_of(pid: int) -> dict[int, list[str]]:
    """Return the sockets of the ranks in process ``pid``, or else in the processes that it started, by process id.

    Raises:
        NoAnswerError: the process does not exist, or holds no rank that this user may ask.
    """
    sockets = ranks_here()
    if pid in sockets:
        return {pid: sockets[pid]}
    try:
        started = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except (psutil.NoSuchProcess, OverflowError):
        raise NoAnswerError(f"there is no process {pid} here") from None
    ranks = {child: sockets[child] for child in started if child in sockets}
    if not ranks:
        raise NoAnswerError(f"process {pid} is not a rank of horocache, and has started none that runs here")
    return ranks


def ask(pid: int, name: str) -> Record:
    """Ask a running rank for its flight record; ``name`` is a socket that :func:`ranks_of` returned.

    Raises:
        NoAnswerError: the rank is gone, is stopped, belongs to another user, is not the process ``pid``, or does not
            send a flight record.
    """
    until = time.monotonic() + _TIMEOUT_S
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_TIMEOUT_S)
            asking.connect("\0" + name)
            peer = _CREDENTIALS.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            if peer[0] != pid:
                raise NoAnswerError(f"process {peer[0]} answers in the name of process {pid}")
            answer = receive(asking, until)
    except OSError as error:
        raise NoAnswerError(f"process {pid} does not answer (stopped?): {error}") from error
    if len(answer) > MOST_BYTES:
        raise NoAnswerError(f"process {pid} sends more than {MOST_BYTES} bytes, which is not a flight record")
    if not answer:
        raise NoAnswerError(f"process {pid} does not answer: it belongs to another user")
    try:
        return decode(answer)
    except ValueError as error:
        raise NoAnswerError(f"process {pid} sends an invalid flight record: {error}") from None


def ask_all(sockets: Mapping[int, Sequence[str]]) -> tuple[list[Record], list[str]]:
    """Ask running ranks, by the sockets of their processes; return their records, and why the others gave none."""
    records: list[Record] = []
    failures: list[str] = []
    for pid, names in sockets.items():
        for name in names:
            try:
                records.append(ask(pid, name))
            except NoAnswerError as error:
                failures.append(str(error))
    return records, failures


def receive(asking: socket.socket, until: float) -> bytes:
    """Receive an answer to its end, or until it exceeds MOST_BYTES by one byte.

    Raises:
        TimeoutError: the answer has not ended at ``until``, a time of ``time.monotonic``. OSError: as ``recv``.
    """
    answer = bytearray()
    while len(answer) <= MOST_BYTES:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        asking.settimeout(left)
        piece = asking.recv(min(1 << 16, MOST_BYTES + 1 - len(answer)))
        if not piece:
            break
        answer += piece
    return bytes(answer)
