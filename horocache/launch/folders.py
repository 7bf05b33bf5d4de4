"""Temporary folders of a job; the next job removes those whose process was killed.

Note [Whose a temporary folder is]
A folder is one of ours if all of this holds: its name is one that `temporary_folder` makes, it is private to this
user, and its file ``owner`` names the program, the folder itself (name, device and inode, so that a copy of the folder
does not match), and the host and the boot in which it was made. Any other folder is left untouched.

A folder is abandoned if the process that made it is gone. That process holds a lock on ``owner``. The kernel releases
the lock however the process ends, and the lock works across containers, where process numbers have no meaning. The
file is locked before it gets the name ``owner``, so a process that obtains the lock on ``owner`` knows that the maker
is gone. Locks may not reach other hosts, so folders of other hosts stay, whether locked or not.
"""

import contextlib
import fcntl
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_OWNER = "owner"
_NAMES = re.compile(r"horocache-(run-)?[a-z0-9_]{8}")  # the last eight characters are tempfile's
_MARK = "temporary folder of horocache, format 1"
_MOST_BYTES = 4096  # the most bytes of an owner file that are read


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder that only this user can enter, and remove it at the end.

    First removes the folders of processes that were killed.

    Args:
        prefix: ``horocache-`` or ``horocache-run-``.
    """
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    folder.chmod(0o700)  # below a directory with the set-group-id bit, the folder would inherit that bit
    try:
        with (folder / f"{_OWNER}.new").open("wb", buffering=0) as lock:
            # Without locks, /proc or free space, no later launcher can remove the folder.
            with contextlib.suppress(OSError):
                lock.write(_owner_text(folder).encode())
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                Path(lock.name).rename(folder / _OWNER)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_if_ours(folder: Path) -> None:
    """Remove a folder if `temporary_folder` made it on this host and its process is gone; leave any other folder."""
    with contextlib.suppress(OSError):  # another process removed it meanwhile
        if _NAMES.fullmatch(folder.name) and _is_private(folder) and _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob("horocache-*"):
        remove_if_ours(folder)


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700


def _is_abandoned(folder: Path) -> bool:
    file = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return False
        if os.read(file, _MOST_BYTES) != _owner_text(folder).encode():
            return False
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def _owner_text(folder: Path) -> str:
    found = folder.stat()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return "\n".join(
        [_MARK, f"folder {folder.name} {found.st_dev} {found.st_ino}", f"host {socket.gethostname()} boot {boot}", ""]
    )
