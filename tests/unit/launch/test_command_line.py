"""Hosts, programs, knob flags, environments and causes of failures, without a job."""

import os
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from horocache.base.gpus import count_gpus
from horocache.base.processors import Cores
from horocache.base.usage import UsageError
from horocache.core.launcher_environment import JobEnvironment, find_program, new_job_id, reserve_port
from horocache.launch import cli, sessions
from horocache.launch.cause import Cause, read_cause
from horocache.launch.flags import build_parser, knob_arguments, parse
from horocache.launch.hosts import count_ranks
from horocache.launch.output import Tail
from horocache.launch.summary import first_cause


def knob(name, kind="int", default="1", minimum="0", maximum="9", alias="", scope="agree"):
    return {
        "name": name,
        "type": kind,
        "default": default,
        "minimum": minimum,
        "maximum": maximum,
        "alias": alias,
        "scope": scope,
        "doc": "Does 100% of it.",
    }


KNOBS = [
    knob("speed"),
    knob("quiet", "bool", "0"),
    knob("mode", "choice", "a", "a|b", ""),
    knob("rank", scope="rank"),
    knob("fusion_threshold"),
    knob("log_hide_time", "bool"),
]


def knobs_of(*arguments):
    options = parse(build_parser(KNOBS, "1"), [*arguments, "command"])
    return knob_arguments(options, KNOBS)


def test_every_knob_but_the_identity_is_a_flag():
    text = build_parser(KNOBS, "1").format_help()
    assert "--speed N" in text
    assert "--mode WORD" in text
    assert "--quiet, --no-quiet" in text
    assert "one of a, b" in text
    assert "Does 100% of it." in text
    with pytest.raises(UsageError):
        knobs_of("--rank", "1")


def test_flags_become_the_texts_of_knobs():
    assert knobs_of() == {}
    assert knobs_of("--speed", "x") == {"speed": "x"}
    assert knobs_of("--quiet") == {"quiet": "1"}
    assert knobs_of("--no-quiet") == {"quiet": "0"}


def test_horovods_spellings_set_the_same_knobs():
    assert knobs_of("--fusion-threshold-mb", "64") == {"fusion_threshold": str(64 << 20)}
    assert knobs_of("--log-with-timestamp") == {"log_hide_time": "0"}


def test_the_command_begins_at_the_first_word_that_is_no_option():
    options = parse(build_parser(KNOBS, "1"), ["-np", "2", "--speed=3", "python", "-np", "x", "--speed", "4"])
    assert options.command == ["python", "-np", "x", "--speed", "4"]
    assert options.knob_speed == "3"
    assert parse(build_parser(KNOBS, "1"), ["--", "-x"]).command == ["-x"]


@pytest.mark.parametrize(
    ("np", "hosts", "ranks"),
    [
        (3, None, 3),
        (2, "localhost:4", 2),
        (None, "localhost:4", 4),
        (None, "localhost", 1),
        (5, "localhost:2,127.0.0.1:3", 5),
    ],
)
def test_ranks_and_slots_give_the_number_of_ranks(np, hosts, ranks):
    assert count_ranks(np, hosts) == ranks


def test_the_host_may_have_the_name_of_this_machine():
    assert count_ranks(None, f"{socket.gethostname()}:2") == 2


@pytest.mark.parametrize(
    "hosts", ["", "localhost:", "localhost:0", "localhost:-1", ":2", "localhost:2,", "-oProxyCommand=x:2"]
)
def test_invalid_hosts_raise(hosts):
    with pytest.raises(UsageError):
        count_ranks(1, hosts)


def test_programs_are_looked_up_like_in_a_shell(tmp_path):
    tool = tmp_path / "tool"
    tool.write_text("")
    assert find_program("tool", str(tmp_path)) == (None, 126)
    tool.chmod(0o755)
    assert find_program("tool", f"/nowhere:{tmp_path}") == (str(tool), 0)
    assert find_program(str(tool), None) == (str(tool), 0)
    assert find_program("tool", "/nowhere") == (None, 127)
    assert find_program(str(tmp_path), "") == (None, 126)
    assert find_program("x" * 300, str(tmp_path)) == (None, 127), "no file can have that name"


def test_a_ranks_environment_keeps_user_variables_and_drops_those_of_torchrun():
    base = {
        "HOME": "/h",
        "CUDA_VISIBLE_DEVICES": "3,1",
        "RANK": "7",
        "TORCHELASTIC_RUN_ID": "x",
        "GROUP_RANK": "1",
        "HOROCACHE_JOB_ID": "outer",
    }
    shared = JobEnvironment(
        base=base, size=2, job="j", port=5, directory="/d", meets_here=True, knobs={"speed": "3"}, threads=4
    )
    environment = shared.of_rank(1)
    assert environment["HOME"] == "/h" and environment["CUDA_VISIBLE_DEVICES"] == "3,1"
    assert environment["RANK"] == "1"
    assert environment["HOROCACHE_JOB_ID"] == "j"
    assert environment["HOROCACHE_SPEED"] == "3"
    assert environment["HOROCACHE_RENDEZVOUS_DIR"] == "/d"
    assert environment["OMP_NUM_THREADS"] == "4"
    assert not {"TORCHELASTIC_RUN_ID", "GROUP_RANK"} & set(environment)
    assert base["RANK"] == "7"


def test_jobs_have_different_names_and_ports():
    assert len({new_job_id() for _ in range(100)}) == 100
    with reserve_port() as one, reserve_port() as other:
        assert one.getsockname()[1] != other.getsockname()[1]


def test_a_socket_with_reuse_can_listen_on_the_reserved_port():
    with reserve_port() as reserved, socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("127.0.0.1", reserved.getsockname()[1]))
        store.listen()
        with socket.create_connection(store.getsockname(), timeout=5):
            pass


def test_processes_are_found_by_session_and_by_job(tmp_path):
    job = new_job_id()
    child = subprocess.Popen(
        ["sleep", "60"], env={"PATH": os.environ["PATH"], "HOROCACHE_JOB_ID": job}, start_new_session=True
    )
    environ = Path(f"/proc/{child.pid}/environ")
    while not environ.read_bytes():  # Popen returns before the program has its environment
        time.sleep(0.001)
    try:
        assert child.pid in [member.pid for member in sessions.members({child.pid}, "")]
        assert [member.pid for member in sessions.members((), job)] == [child.pid]
        assert sessions.members((), new_job_id()) == []
        assert sessions.members((), "") == []
        assert sessions.end((), job, 5.0) == []
    finally:
        child.kill()
        child.wait()


class _Ended:
    """The parts of a rank's process that decide which rank failed first."""

    def __init__(self, *stderr, cause=None, ended=1.0, by_launcher=False):
        self.cause, self.ended, self.started, self.stopped_by_launcher = cause, ended, 0.0, by_launcher
        self.err = type("Stream", (), {"tail": Tail()})()
        self.err.tail.add("\n".join(stderr).encode())


def test_the_first_rank_whose_error_names_no_other_rank_failed_first():
    follower = _Ended("Traceback (most recent call last):", "horocache.errors.ShutDownError: rank 1 has shut down")
    lost = _Ended("horocache.errors.PeerLostError: rank 1 was killed")
    raised = _Ended("Traceback (most recent call last):", "ValueError: the data are bad")
    silent = _Ended()
    assert first_cause([follower, raised, lost, silent]) is raised
    assert first_cause([silent, raised]) is silent
    assert first_cause([follower, lost]) is follower


def test_the_launcher_prints_a_note_of_threads_to_terminals_only(monkeypatch):
    def notes(ranks, threads):
        options = SimpleNamespace(notes=[], verbose=False)
        environment = SimpleNamespace(size=ranks, threads=threads, base={})
        return cli.startup_notes(environment, Cores(tuple(range(4)), None), options)

    monkeypatch.setattr(cli.os, "isatty", lambda _: True)
    (line,) = notes(2, 2)
    assert line.startswith("OMP_NUM_THREADS=2 for each of 2 ranks on 4 usable cores")
    assert notes(1, 4) == notes(2, None) == []
    monkeypatch.setattr(cli.os, "isatty", lambda _: False)
    assert notes(2, 2) == []


def test_the_launcher_tells_what_several_ranks_on_one_gpu_need(monkeypatch):
    def notes(ranks, gpus):
        monkeypatch.setattr(cli, "count_gpus", lambda _: gpus)
        environment = SimpleNamespace(size=ranks, threads=None, base={})
        return cli.startup_notes(environment, Cores(tuple(range(8)), None), SimpleNamespace(notes=[], verbose=False))

    assert notes(2, 0) == notes(2, 2) == notes(2, 4) == []
    (line,) = notes(4, 2)
    assert line.startswith("4 ranks share 2 GPUs: NCCL takes several ranks on one GPU from version 2.30.3 on")
    assert notes(2, 1)[0].startswith("2 ranks share 1 GPU: ")


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 2), ("", 0), ("0", 1), ("1,0", 2), ("0,7,1", 1), ("-1", 0), ("GPU-8c3f,MIG-77", 2), (" 1 , 0", 2)],
)
def test_gpus_are_counted_as_the_driver_shows_them(tmp_path, visible, count):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert count_gpus(visible, tmp_path) == count
    assert count_gpus(visible, tmp_path / "missing") == 0


def test_the_cause_that_a_rank_reports_outweighs_the_text_of_its_error():
    follows = Cause(follows=True, at=2.0, why="rank 1 aborted")
    wrapped = _Ended("RuntimeError: in a callback: AbortedError: rank 1 aborted", cause=follows)
    late = _Ended("SystemExit", ended=5.0)
    assert first_cause([wrapped, late]) is late
    reported = _Ended(
        "RuntimeError: mine", cause=Cause(follows=False, at=1.5, why="it raised"), ended=9.0, by_launcher=True
    )
    assert first_cause([wrapped, late, reported]) is reported, "it failed at 1.5, before the launcher ended it"
    assert first_cause([wrapped, _Ended(ended=9.0, by_launcher=True)]) is wrapped, (
        "a rank that the launcher ended did not fail first"
    )


def test_incomplete_causes_are_ignored(tmp_path):
    assert read_cause(tmp_path, 0) is None
    for text, read in (
        (b"follows 1500000000\nrank 1 aborted:\nwhy\xff", Cause(True, 1.5, "rank 1 aborted:\nwhy\\xff")),
        (b"raised 2000000000\n", Cause(False, 2.0, "")),
        (b"", None),
        (b"raised", None),
        (b"raised x", None),
        (b"a b c d", None),
    ):
        (tmp_path / "cause.0").write_bytes(text)
        assert read_cause(tmp_path, 0) == read, text
