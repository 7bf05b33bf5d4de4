"""The doctor checks the directory of the start-up socket by the rules of the core."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

import horocache as hc
from horocache.doctor import start_up
from horocache.doctor.finding import State
from horocache.testing import run_ranks


@pytest.fixture
def tmp_path():
    # The path of pytest's own folder may be too long for a socket.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def look(monkeypatch):
    def call(**environment):
        # Only during the check: the fork server of run_ranks would keep the variables for all later tests.
        with monkeypatch.context() as patch:
            for name in ("TMPDIR", "HOROCACHE_RENDEZVOUS_DIR"):
                patch.delenv(name, raising=False)
            for name, value in environment.items():
                patch.setenv(name, str(value))
            return list(start_up.look())

    return call


def test_the_knob_overrides_tmpdir_and_tmpdir_overrides_the_default(look, tmp_path):
    own = f"horocache-{os.geteuid()}"
    for folder in ("knob", "tmp"):
        (tmp_path / folder).mkdir()
    chosen = {"HOROCACHE_RENDEZVOUS_DIR": tmp_path / "knob", "TMPDIR": tmp_path / "tmp"}
    assert look(**chosen)[0].value.startswith(f"{tmp_path}/knob/{own} ")
    assert look(TMPDIR=tmp_path / "tmp")[0].value.startswith(f"{tmp_path}/tmp/{own} ")
    for finding in (look()[0], look(TMPDIR="")[0]):
        assert finding.value.startswith(f"/tmp/{own}")


@pytest.mark.parametrize("variable", ["TMPDIR", "HOROCACHE_RENDEZVOUS_DIR"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda base: base.rmdir(), "is not a directory that exists"),
        (lambda base: (base.rmdir(), base.write_text("")), "Not a directory"),
        (lambda base: own(base).mkdir(mode=0o755), "is not private"),
        (lambda base: own(base).mkdir(mode=0o500), "is not private"),
        (lambda base: (own(base).mkdir(mode=0o700), own(base).chmod(0o2700)), "is not private"),
        (lambda base: own(base).symlink_to(base), "is not private"),
        (lambda base: own(base).write_text(""), "is not private"),
        (lambda base: own(base).mkdir(mode=0o700), None),
        (lambda base: None, None),
    ],
)
def test_the_doctor_and_the_start_agree_about_the_directory(look, tmp_path, variable, make, words):
    def start(fails):
        if os.environ["HOROCACHE_RANK"] == "0" or not fails:
            hc.init()

    base = tmp_path / "base"
    base.mkdir()
    make(base)
    (finding,) = look(**{variable: base})
    (outcome, _) = run_ranks(start, 2, args=(words is not None,), environment={variable: str(base)}, check=False)
    if words is None:
        assert finding.state is State.OK and outcome.ok, outcome.describe()
    else:
        assert finding.state is State.PROBLEM and words in finding.value and finding.fix
        assert "StartupError" in outcome.trace, outcome.describe()


def own(base):
    return base / f"horocache-{os.geteuid()}"


def test_a_path_that_is_too_long_for_a_socket_is_a_problem(look, tmp_path):
    own_bytes = len(f"/horocache-{os.geteuid()}/0123456789abcdef.sock")
    fits = f"{tmp_path}/{'x' * 200}"[: 107 - own_bytes]
    (finding,) = look(TMPDIR=fits)
    assert "too long" not in finding.value
    (finding,) = look(TMPDIR=fits + "x")
    assert finding.state is State.PROBLEM and "too long" in finding.value


def test_sockets_of_earlier_jobs_are_shown(look, tmp_path):
    folder = own(tmp_path)
    folder.mkdir(mode=0o700)
    (folder / "0123456789abcdef.sock").touch()
    (finding, left) = look(TMPDIR=tmp_path)
    assert finding.state is State.OK
    assert left.state is State.INFO and left.value == "0123456789abcdef.sock"
