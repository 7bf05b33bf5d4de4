"""Temporary folders of a job; the next job removes those whose process was killed.

Note [Ownership of a temporary folder]
Beside a folder lies its lock file, ``FOLDER.lock``. A folder is one of ours if all of this holds: its name is one that
`temporary_folder` makes, folder and lock file are private to this user, and the lock file names the program, the
folder, its own device and inode (so that a copy does not match), and the host and the boot in which it was made. Any
other folder is left untouched.

A folder is abandoned if the process that made it is gone. That process holds a lock on the lock file. The kernel
releases the lock however the process ends, and the lock works across containers, where process numbers have no meaning.
Locks may not reach other hosts, so folders of other hosts stay, whether locked or not.

A process may be killed at any moment, and a signal may raise an exception at any moment. So the lock file appears whole
and locked before the folder is made, and goes after the folder is gone: whatever is left in between can be proved to be
ours.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NAMES = re.compile(r"horocache-(run-)?[0-9a-f]{8}")
_MARK = "temporary folder of horocache, format 2"
_MOST_BYTES = 4096  # the most bytes of a lock file that are read


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder that only this user can enter, and remove it at the end.

    First removes the folders of processes that were killed.

    Args:
        prefix: ``horocache-`` or ``horocache-run-``.

    Raises:
        OSError: the folder cannot be made.
    """
    _remove_abandoned()
    folder = Path(tempfile.gettempdir(), prefix + secrets.token_hex(4))
    with _locked(folder):
        _make(folder)
        try:
            folder.chmod(0o700)  # below a directory with the set-group-id bit, the folder would inherit that bit
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # not ours, so that our lock file must not stay beside it
        _lock_file(folder).unlink(missing_ok=True)
        raise


def remove_if_ours(folder: Path) -> None:
    """Remove a folder if `temporary_folder` made it on this host and its process is gone; leave any other folder."""
    with contextlib.suppress(OSError), _abandoned(folder) as is_abandoned:  # another process removed it meanwhile
        if is_abandoned:
            if _is_private(folder):
                shutil.rmtree(folder, ignore_errors=True)
            if not os.path.lexists(folder):
                _lock_file(folder).unlink()


def _remove_abandoned() -> None:
    for lock in Path(tempfile.gettempdir()).glob("horocache-*.lock"):
        remove_if_ours(lock.with_suffix(""))


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock file of a folder.

    A file system without unnamed files or locks gets none: then the folder of a process that is killed stays.
    """
    file = lock = None
    with contextlib.suppress(OSError):
        file = os.open(folder.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(file, lock_text(folder, file))
        # With a descriptor of a folder, link follows the symbolic link in /proc.
        os.link(f"/proc/self/fd/{file}", _lock_file(folder), src_dir_fd=file, follow_symlinks=True)
        lock = _lock_file(folder)
    try:
        yield
    finally:
        if lock is not None and not os.path.lexists(folder):
            with contextlib.suppress(OSError):
                lock.unlink()
        if file is not None:
            os.close(file)


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700


@contextlib.contextmanager
def _abandoned(folder: Path) -> Iterator[bool]:
    """True if the lock file proves that the folder is ours and that its process is gone; holds the lock meanwhile."""
    if not _NAMES.fullmatch(folder.name):
        yield False
        return
    file = os.open(_lock_file(folder), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield _is_lock_of(folder, file) and _try_lock(file)
    finally:
        os.close(file)


def _is_lock_of(folder: Path, file: int) -> bool:
    found = os.fstat(file)
    private = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o600
    return private and os.read(file, _MOST_BYTES) == lock_text(folder, file)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_text(folder: Path, file: int) -> bytes:
    """Return the contents of the lock file of ``folder``, open as ``file``; no other file has them."""
    found = os.fstat(file)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    lines = [_MARK, f"folder {folder.name}", f"lock {found.st_dev} {found.st_ino}"]
    return "\n".join([*lines, f"host {socket.gethostname()} boot {boot}", ""]).encode()
