"""Temporary folders of a job, which the next job removes if nobody was left who could.

Note [Whose a temporary folder is]
A folder is one of ours if all of this holds: its name is one that `temporary_folder` makes, it is private to this
user, and the file ``owner`` in it names the program, the folder itself (name, device and inode, so that a copy is not
one), and the host and the boot that it was made in. A folder that lacks any of it belongs to somebody else and is not
touched.

It is abandoned if the process that made it is gone. That process holds a lock on ``owner``, which the kernel gives back
however a process ends, and knows across containers, where process numbers mean nothing. The file gets its name when it
is locked already, so a lock that can be had on ``owner`` means that its process is gone. Locks may not reach other
hosts, which is why folders of other hosts stay, whatever their locks say.
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
_NAMES = re.compile(r"horocache-(run-)?[a-z0-9_]{8}")  # the ends are those of tempfile
_MARK = "temporary folder of horocache, format 1"
_MOST_BYTES = 4096  # of an owner file


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder that this user alone can enter, and remove it at the end.

    Before that, folders are removed whose processes were killed.

    Args:
        prefix: ``horocache-`` or ``horocache-run-``.
    """
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    folder.chmod(0o700)  # below a directory with the set-group-id bit it would have that bit, too
    try:
        with (folder / f"{_OWNER}.new").open("wb", buffering=0) as lock:
            # No locks, no /proc, or no room: then no later launcher removes the folder.
            with contextlib.suppress(OSError):
                lock.write(_owner_text(folder).encode())
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                Path(lock.name).rename(folder / _OWNER)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_if_ours(folder: Path) -> None:
    """Remove a folder that `temporary_folder` made here and whose process is gone; leave every other one alone."""
    with contextlib.suppress(OSError):  # it has gone meanwhile
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
