"""Findings of ``doctor`` about the directory of the start-up socket.

``cpp_core/net/bootstrap/unix_rendezvous.cc`` chooses it in the same way.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from horocache.base.paths import is_folder
from horocache.core.launcher_environment import own_environment
from horocache.doctor.finding import Finding, State
from horocache.errors import HorocacheError

_NAME = "start-up directory"
_MOST_BYTES = 107  # the longest path of a Unix socket
_SOCKET = "/0123456789abcdef.sock"
_ELSEWHERE = "set TMPDIR, or the knob rendezvous_dir, to a directory that you can write to"


def look() -> Iterator[Finding]:
    """Check the directory, or the directory in which it would be made."""
    # Joined without pathlib, which drops slashes that the core counts.
    folder = f"{_base()}/horocache-{os.geteuid()}"
    if len(os.fsencode(folder + _SOCKET)) > _MOST_BYTES:
        yield _problem(f"{folder} is too long for a socket, whose path has {_MOST_BYTES} bytes at most", _ELSEWHERE)
        return
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        yield _parent(folder)
    except OSError as error:
        yield _problem(f"{folder}: {error.strerror}", _ELSEWHERE)
    else:
        yield from _directory(folder, found)


def _base() -> str:
    """Return the directory in which the core makes its own; tempfile would choose another if TMPDIR cannot be used."""
    try:
        from horocache import _core  # noqa: PLC0415  (doctor/core.py reports a core that cannot be loaded)

        chosen = _core.parse_knobs({})["rendezvous_dir"][0]
    except (ImportError, HorocacheError):  # doctor/core.py reports both errors
        chosen = ""
    return chosen or own_environment().get("TMPDIR") or "/tmp"  # noqa: S108  (the core's own default)


def _parent(folder: str) -> Finding:
    parent = Path(folder).parent
    if not is_folder(parent):
        return _problem(f"{parent} is not a directory that exists", _ELSEWHERE)
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        return _problem(f"{parent} cannot be written", _ELSEWHERE)
    return Finding("system", _NAME, f"{folder} will be made when it is needed")


def _directory(folder: str, found: os.stat_result) -> Iterator[Finding]:
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700
    if not private:
        yield _problem(f"{folder} is not private", f"it must be your own directory of mode 0700: remove {folder}")
        return
    yield Finding("system", _NAME, folder)
    left = sorted(path.name for path in Path(folder).iterdir())
    if left:
        fix = f"if no job is starting now, they are left over and harmless: rm {folder}/*"
        yield Finding("system", "start-up sockets", ", ".join(left[:5]), State.INFO, fix)


def _problem(value: str, fix: str) -> Finding:
    return Finding("system", _NAME, value, State.PROBLEM, fix)
