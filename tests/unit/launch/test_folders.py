"""Temporary folders: the next job removes the folders of killed processes, and no other folders."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

from horocache.launch import folders
from horocache.launch.folders import temporary_folder

# Makes and removes a temporary folder, and kills itself, or raises an exception, before or after the n-th system call.
ENDED = """
import os, signal, sys, tempfile
from horocache.launch import folders

tempfile.tempdir, countdown = sys.argv[1], int(sys.argv[2])

def count(frame, event, function):
    global countdown
    if event in ("c_call", "c_return") and function.__module__ in ("posix", "fcntl"):
        countdown -= 1
        if countdown == 0:
            if sys.argv[3] == "raise":
                raise SystemExit("interrupted")
            os.kill(os.getpid(), signal.SIGKILL)

sys.setprofile(count)
with folders.temporary_folder("horocache-") as folder:
    os.mkdir(folder / "inner")
    os.close(os.open(folder / "inner" / "file", os.O_CREAT))
sys.setprofile(None)
"""


@pytest.fixture(autouse=True)
def folder_of_tests(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def lock_of(path):
    return path.with_name(f"{path.name}.lock")


def abandoned(path, mode=0o700, text=None):
    """Make the folder of a killed process; ``text`` replaces the correct contents of its lock file."""
    path.mkdir(mode=mode)
    path.chmod(mode)
    (path / "more").touch()
    file = os.open(lock_of(path), os.O_CREAT | os.O_RDWR, 0o600)
    os.write(file, folders.lock_text(path, file) if text is None else text)
    os.close(file)
    return path


def test_a_folder_is_private_and_removed_at_the_end_even_after_an_error(tmp_path):
    with pytest.raises(KeyError), temporary_folder("horocache-x-") as folder:
        assert folder.parent == tmp_path and folder.name.startswith("horocache-x-")
        assert folder.stat().st_mode & 0o7777 == 0o700
        (folder / "file").touch()
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_folders_of_ended_processes_are_removed(tmp_path):
    for name in ("horocache-abcdef01", "horocache-run-01234567"):
        abandoned(tmp_path / name)
    with temporary_folder("horocache-") as folder:
        assert sorted(tmp_path.iterdir()) == [folder, lock_of(folder)]


@pytest.mark.parametrize(("how", "code"), [("kill", -signal.SIGKILL), ("raise", 1)])
def test_the_next_process_removes_the_folder_of_a_process_that_ended_at_any_moment(tmp_path, how, code):
    for moment in range(1, 1000):
        command = [sys.executable, "-c", ENDED, str(tmp_path), str(moment), how]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
        if done.returncode == 0:
            break
        assert done.returncode == code and (how == "kill" or "interrupted" in done.stderr), done.stderr
        left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
        with temporary_folder("horocache-") as folder:
            assert sorted(tmp_path.iterdir()) == [folder, lock_of(folder)], f"moment {moment}, which had left {left}"
    assert moment > 20 and list(tmp_path.iterdir()) == []


def test_a_folder_of_the_same_name_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(folders.secrets, "token_hex", lambda _: "00000000")
    (tmp_path / "horocache-00000000").mkdir()
    with pytest.raises(FileExistsError), temporary_folder("horocache-"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["horocache-00000000"]


def test_folders_of_running_processes_stay(tmp_path):
    first, second = temporary_folder("horocache-"), temporary_folder("horocache-run-")
    with first as one, second as two, temporary_folder("horocache-") as three:
        assert one.exists() and two.exists() and three.exists()
    held = abandoned(tmp_path / "horocache-00000000")
    with lock_of(held).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with temporary_folder("horocache-"):
            assert (held / "more").exists()


def test_folders_that_may_belong_to_other_programs_stay(tmp_path):
    open_to_all = abandoned(tmp_path / "horocache-00000001", 0o755)
    other = abandoned(tmp_path / "other")
    elsewhere = abandoned(tmp_path / "elsewhere")
    link = abandoned(tmp_path / "horocache-00000002")
    shutil.rmtree(link)
    link.symlink_to(elsewhere)
    linked = abandoned(tmp_path / "horocache-00000003")
    lock_of(linked).unlink()
    lock_of(linked).symlink_to(lock_of(other))
    readable = abandoned(tmp_path / "horocache-00000004")
    lock_of(readable).chmod(0o644)
    unnamed = tmp_path / "horocache-1000"  # ranks without a launcher bootstrap here
    unnamed.mkdir(mode=0o700)
    with temporary_folder("horocache-"):
        for folder in (open_to_all, other, elsewhere, linked, readable):
            assert (folder / "more").exists(), folder
        assert unnamed.exists() and link.is_symlink()


def test_folders_that_may_not_be_of_a_job_on_this_host_stay(tmp_path, monkeypatch):
    copied = tmp_path / "horocache-00000001"
    shutil.copytree(abandoned(tmp_path / "original"), copied)
    lock_of(copied).write_text(lock_of(tmp_path / "original").read_text().replace("original", copied.name))
    lock_of(copied).chmod(0o600)
    without = tmp_path / "horocache-00000002"
    without.mkdir(mode=0o700)
    (without / "more").touch()
    kept = [
        copied,
        without,
        abandoned(tmp_path / "horocache-experiments"),  # not the name of a job's folder
        abandoned(tmp_path / "horocache-abc"),
        abandoned(tmp_path / "horocache-run-abcdefabc"),
        abandoned(tmp_path / "horocache-00000003", text=b"me"),
        abandoned(tmp_path / "horocache-00000004", text=b""),
        abandoned(tmp_path / "horocache-00000005", text=b"x" * 100_000),
    ]
    renamed = abandoned(tmp_path / "before")
    lock_of(renamed).rename(tmp_path / "horocache-00000006.lock")
    kept.append(renamed.rename(tmp_path / "horocache-00000006"))
    fifo = abandoned(tmp_path / "horocache-00000007")
    lock_of(fifo).unlink()
    os.mkfifo(lock_of(fifo), 0o600)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "another")
        kept.append(abandoned(tmp_path / "horocache-00000008"))
    with temporary_folder("horocache-"):
        for folder in (*kept, fifo):
            assert (folder / "more").exists(), folder
