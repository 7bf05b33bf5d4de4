"""Temporary folders of a job, which the next job removes if nobody was left who could.

Note [Whose a temporary folder is]
A folder belongs to the process that holds a lock on the file ``owner`` in it. The kernel gives locks back however a
process ends, and knows them across containers, where process numbers mean nothing. The file gets its name when it is
locked already, so a lock that can be had on ``owner`` means that its process is gone.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_OWNER = "owner"


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder that this user alone can enter, and remove it at the end. ``prefix`` begins with ``horocache-``.

    Before that, folders are removed whose processes were killed.
    """
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    folder.chmod(0o700)  # below a directory with the set-group-id bit it would have that bit, too
    try:
        with (folder / f"{_OWNER}.new").open("w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks: nobody will remove it in our place
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                Path(lock.name).rename(folder / _OWNER)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    for owner in Path(tempfile.gettempdir()).glob(f"horocache-*/{_OWNER}"):
        with contextlib.suppress(OSError):  # it is another user's or has gone meanwhile
            if _is_private(owner.parent) and _is_free(owner):
                shutil.rmtree(owner.parent, ignore_errors=True)


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700


def _is_free(owner: Path) -> bool:
    file = os.open(owner, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True
