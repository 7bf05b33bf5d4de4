"""Temporary folders: the next job removes those of killed processes, and all others stay."""

import fcntl
import os
import shutil
import socket
import tempfile

import pytest

from horocache.launch import folders
from horocache.launch.folders import temporary_folder


@pytest.fixture(autouse=True)
def folder_of_tests(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def abandoned(path, mode=0o700, owner=None):
    """A folder as a killed process leaves it; ``owner`` replaces the right contents of its file `owner`."""
    path.mkdir(mode=mode)
    path.chmod(mode)
    (path / "owner").write_text(folders._owner_text(path) if owner is None else owner)
    (path / "more").touch()
    return path


def test_a_folder_is_private_and_goes_at_the_end_also_after_an_error(tmp_path):
    with pytest.raises(KeyError), temporary_folder("horocache-x-") as folder:
        assert folder.parent == tmp_path and folder.name.startswith("horocache-x-")
        assert folder.stat().st_mode & 0o7777 == 0o700
        (folder / "file").touch()
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_holds_any_more_is_removed(tmp_path):
    for name in ("horocache-abcdefgh", "horocache-run-0123_xyz"):
        abandoned(tmp_path / name)
    with temporary_folder("horocache-") as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_what_somebody_holds_stays(tmp_path):
    first, second = temporary_folder("horocache-"), temporary_folder("horocache-run-")
    with first as one, second as two, temporary_folder("horocache-") as three:
        assert one.exists() and two.exists() and three.exists()
    held = abandoned(tmp_path / "horocache-heldheld")
    with (held / "owner").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with temporary_folder("horocache-"):
            assert (held / "more").exists()


def test_what_may_be_somebody_else_s_stays(tmp_path):
    open_to_all = abandoned(tmp_path / "horocache-open2all", 0o755)
    other = abandoned(tmp_path / "other")
    elsewhere = abandoned(tmp_path / "elsewhere")
    (tmp_path / "horocache-linkabcd").symlink_to(elsewhere)
    linked = abandoned(tmp_path / "horocache-linkedto")
    (linked / "owner").unlink()
    (linked / "owner").symlink_to(other / "owner")
    unnamed = tmp_path / "horocache-1000"  # ranks without a launcher bootstrap here
    unnamed.mkdir(mode=0o700)
    with temporary_folder("horocache-"):
        for folder in (open_to_all, other, elsewhere, linked):
            assert (folder / "more").exists(), folder
        assert unnamed.exists()


def test_what_cannot_be_proved_to_be_a_job_s_of_this_host_stays(tmp_path, monkeypatch):
    copied = tmp_path / "horocache-copied01"
    shutil.copytree(abandoned(tmp_path / "original"), copied)
    (copied / "owner").write_text((tmp_path / "original" / "owner").read_text().replace("original", copied.name))
    kept = [
        copied,
        abandoned(tmp_path / "horocache-experiments"),  # not the name of a job's folder
        abandoned(tmp_path / "horocache-abc"),
        abandoned(tmp_path / "horocache-run-abcdefghi"),
        abandoned(tmp_path / "horocache-somebody", owner="me"),
        abandoned(tmp_path / "horocache-nobody_0", owner=""),
        abandoned(tmp_path / "horocache-much_000", owner="x" * 100_000),
    ]
    renamed = abandoned(tmp_path / "before")
    kept.append(renamed.rename(tmp_path / "horocache-renamed1"))
    fifo = abandoned(tmp_path / "horocache-fifo0000")
    (fifo / "owner").unlink()
    os.mkfifo(fifo / "owner")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "another")
        kept.append(abandoned(tmp_path / "horocache-another0"))
    with temporary_folder("horocache-"):
        for folder in (*kept, fifo):
            assert (folder / "more").exists(), folder
