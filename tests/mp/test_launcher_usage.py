"""Mistakes on the command line: one readable line, exit code 2 (127 or 126 for the command), and no process."""

import errno
import stat
import subprocess
import sys
from pathlib import Path

import pytest


def one_line(finished, code):
    assert finished.code == code, finished.report()
    assert finished.out == b""
    assert "Traceback" not in finished.stderr
    lines = finished.stderr.strip().splitlines()
    assert len(lines) == 1, finished.report()
    assert lines[0].startswith("horocacherun: ")
    return lines[0]


@pytest.mark.parametrize("np", ["0", "-1", "1048577"])
def test_an_invalid_number_of_ranks_is_one_line(launcher, np):
    assert f"-np is {np}" in one_line(launcher.run("-np", np, "true"), 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-np", "two", "true"], "'two' is not a whole number"),
        (["-np", "2"], "no program to run"),
        (["true"], "how many ranks?"),
        ([], "how many ranks?"),
        (["-np"], "expected one argument"),
        (["-np", "3", "-H", "localhost:2", "true"], "-np 3 is more than the 2 slots in -H localhost:2"),
        (["-np", "2", "-H", "elsewhere:2", "true"], "the host 'elsewhere'"),
        (["-np", "2", "-H", "localhost:x", "true"], "expected HOST:SLOTS"),
        (["-np", "2", "--grace", "soon", "true"], "'soon' is not a number of seconds"),
        (["-np", "2", "--bind", "socket", "true"], "socket"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_mistake(launcher, arguments, words):
    assert words in one_line(launcher.run(*arguments), 2)


def test_an_unknown_option_suggests_the_nearest(launcher):
    assert "did you mean --cycle-time?" in one_line(launcher.run("-np", "2", "--cycle-tme", "3", "true"), 2)


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--cycle-time", "fast", "a number from 0 to 1000"),
        ("--cycle-time", "-3", "a number from 0 to 1000"),
        ("--cache-capacity", "1e3", "a whole number from 0"),
        ("--cycle-mode", "tik", "did you mean 'tick'?"),
        ("--fusion-threshold-mb", "many", "'many' is not a number of MiB"),
    ],
)
def test_a_bad_knob_flag_names_the_value_and_what_is_allowed(launcher, flag, value, words):
    line = one_line(launcher.run("-np", "2", flag, value, "true"), 2)
    assert words in line
    assert value in line


def test_an_unknown_knob_variable_is_reported_before_anything_starts(launcher):
    line = one_line(launcher.run("-np", "2", "touch", "started", env={"HOROCACHE_CYCLE_TIM": "1"}), 2)
    assert "HOROCACHE_CYCLE_TIM'" in line
    assert "did you mean 'HOROCACHE_CYCLE_TIME'?" in line
    assert not (launcher.scratch / "started").exists()


def test_a_bad_knob_variable_is_reported_before_anything_starts(launcher):
    line = one_line(launcher.run("-np", "2", "true", env={"HOROCACHE_CACHE_CAPACITY": "-5"}), 2)
    assert "HOROCACHE_CACHE_CAPACITY" in line
    assert "-5" in line


def test_a_missing_command_gives_127(launcher):
    assert "it is in no directory of PATH" in one_line(launcher.run("-np", "2", "no-such-command"), 127)
    assert "there is no such file" in one_line(launcher.run("-np", "2", "./no-such-command"), 127)
    assert "python train.py" in one_line(launcher.run("-np", "2", "train.py"), 127)
    assert "the command's first word is empty" in one_line(launcher.run("-np", "2", ""), 2)


def test_a_bad_rule_of_the_selector_starts_nothing(launcher):
    assert "there is no backend 'shn'; did you mean 'shm'?" in one_line(
        launcher.run("-np", "2", "--select", "allreduce=shn", "true"), 2
    )
    assert launcher.run("-np", "1", "--select", "*=loopback", "true").code == 0


def test_a_file_that_cannot_be_executed_gives_126(launcher):
    script = launcher.scratch / "script"
    script.write_text("echo hello\n")
    assert "cannot be executed" in one_line(launcher.run("-np", "2", str(script)), 126)
    assert "cannot be executed" in one_line(launcher.run("-np", "2", str(launcher.scratch)), 126)


def test_a_script_without_an_interpreter_line_is_an_error(launcher):
    script = launcher.scratch / "script"
    script.write_text("echo hello\n")
    script.chmod(stat.S_IRWXU)
    finished = launcher.run("-np", "2", str(script), env={"OMP_NUM_THREADS": "1"})
    assert finished.code == 126, finished.report()
    assert "cannot start rank 0" in finished.stderr
    assert "#!" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_help_lists_every_knob_as_a_flag(launcher):
    from horocache import _core
    from horocache.launch.flags import IDENTITY

    finished = launcher.run("--help")
    assert finished.code == 0
    for knob in _core.knob_table():
        flag = "--" + knob["name"].replace("_", "-")
        assert (flag + " " in finished.stdout or flag + "," in finished.stdout) == (knob["name"] not in IDENTITY), flag


def test_flags_reach_the_ranks_as_variables(launcher):
    show = "import os; print(sorted((k, v) for k, v in os.environ.items() if k.startswith('HOROCACHE_C')))"
    flags = ["--cycle-time-ms", "2.5", "--cache-capacity", "7", "--fusion-threshold-mb", "2", "--no-stall-check"]
    finished = launcher.run("-np", "1", *flags, sys.executable, "-c", show)
    assert finished.code == 0, finished.report()
    assert "('HOROCACHE_CYCLE_TIME', '2.5')" in finished.stdout
    assert "('HOROCACHE_CACHE_CAPACITY', '7')" in finished.stdout


def test_options_behind_the_command_belong_to_the_command(launcher):
    finished = launcher.run("-np", "1", "echo", "-np", "7", "--version", "--", "-H", "x")
    assert finished.of_rank(0) == ["-np 7 --version -- -H x"]
    assert launcher.run("-np", "1", "--", "echo", "a").of_rank(0) == ["a"]


def test_too_few_descriptors_are_one_line_with_the_number_needed(launcher):
    finished = launcher.run("-np", "100", "true", prefix=["bash", "-c", 'ulimit -n 64; exec "$@"', "bash"])
    assert "100 ranks need 232 file descriptors, the limit is 64" in one_line(finished, 1)


def test_a_temporary_folder_that_cannot_be_made_is_one_line(monkeypatch, capfd):
    from horocache.launch import cli, folders

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders.Path, "mkdir", refuse)
    assert cli.main(["-np", "2", "true"]) == 1
    expected = "cannot make a temporary folder: No space left on device; set TMPDIR to a folder that has room"
    assert capfd.readouterr().err == f"horocacherun: {expected}\n"


def test_the_console_script_is_the_same_program():
    from importlib.metadata import PackageNotFoundError, entry_points, version

    try:
        version("horocache")
    except PackageNotFoundError:
        pytest.skip("horocache is not installed in this environment")
    values = {entry.name: entry.value for entry in entry_points(group="console_scripts")}
    assert values["horocacherun"] == "horocache.launch.cli:main"
    program = Path(sys.executable).with_name("horocacherun")
    subprocess.run([program, "--version"], capture_output=True, timeout=30, check=True)
