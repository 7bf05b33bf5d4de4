"""Stacks in stall reports, dumps of live jobs, and flight records of errors."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from harness import worker_command
from processes import marked

REPORT_SOON = ("--stall-check-warning-time-seconds", "0.3")


def tools(*arguments):
    command = [sys.executable, "-m", "horocache.tools", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def dump(*arguments):
    return tools("dump", *arguments)


@contextlib.contextmanager
def stuck(launcher, ranks=3):
    """A job whose rank 1 holds the GIL in native code while the others wait for it."""
    job = launcher.start(*worker_command(ranks, "waits.py", "absent-in-native-code", flags=REPORT_SOON))
    job.wait_for_file("pid")
    try:
        yield job
    finally:
        (launcher.scratch / "go on").touch()


def test_a_stall_report_shows_the_stack_of_the_late_rank_on_every_rank(launcher):
    def all_ranks_have_reported(errors):
        return all(re.search(rf"^\[{rank}\] .*which others wait for, is at", errors, re.MULTILINE) for rank in range(3))

    with stuck(launcher) as job:
        job.wait_for_errors(all_ranks_have_reported)
        # The lines of the stacks are part of the same message.
    finished = job.finish(30)
    assert finished.code == 0, finished.report()
    pid = (launcher.scratch / "pid").read_text()
    for rank in range(3):
        lines = [line for line in finished.stderr.splitlines() if line.startswith(f"[{rank}] ")]
        begin = [at for at, line in enumerate(lines) if f"rank 1 (pid {pid}), which others wait for, is at" in line]
        assert begin, finished.report()
        stack = lines[begin[0] : begin[0] + 4]
        assert "is at waits.py:" in stack[0] and "in keep_the_lock; innermost call first:" in stack[0]
        assert "in keep_the_lock" in stack[1] and "in absent_in_native_code" in stack[2] and "in <module>" in stack[3]
        report = "\n".join(lines[: begin[0]])
        assert "allreduce 'allreduce.lonely' was submitted by ranks 0, 2 and not by rank 1" in report


def test_a_dump_of_a_live_job_lists_pending_operations_stacks_and_events(launcher):
    with stuck(launcher) as job:
        wanted = [["allreduce.lonely"], [], ["allreduce.lonely"]]
        limit = time.monotonic() + 20
        pending = None
        while pending != wanted and time.monotonic() < limit:  # ranks 0 and 2 may not have submitted yet
            done = dump(job.process.pid, "--json")
            assert done.returncode == 0, done.stderr
            records = json.loads(done.stdout)
            assert [record["rank"] for record in records] == [0, 1, 2]
            pending = [[found["name"] for found in record["pending"]] for record in records]
        assert pending == wanted
        assert "keep_the_lock" in records[1]["stacks"] and "synchronize" in records[2]["stacks"]
        assert records[0]["events"][-1]["what"] == "submitted"

        text = dump(job.process.pid).stdout
        assert "rank 1 of 3 (process " in text and "  pending: nothing" in text
        assert "allreduce 'allreduce.lonely': on ranks 0, 2, not on rank 1" in text

        one = dump(records[2]["pid"]).stdout
        assert one.startswith("rank 2 of 3") and "rank 0 of 3" not in one
    assert job.finish(30).code == 0


def test_the_doctor_names_the_rank_for_which_the_others_wait(launcher):
    with stuck(launcher) as job:
        limit = time.monotonic() + 20
        text = ""
        while "on ranks 0, 2, not on rank 1" not in text and time.monotonic() < limit:  # not for a second yet
            done = tools("doctor", "--hang", job.process.pid)
            text = done.stdout
        assert done.returncode == 1, done.stderr
        assert "3 of 3 ranks run here" in text and "rank 1 is here:" in text and "keep_the_lock" in text
    assert job.finish(30).code == 0


def test_a_dump_of_a_stopped_rank_reports_that_it_does_not_answer(launcher):
    with stuck(launcher, ranks=2) as job:
        pid = int((launcher.scratch / "pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            done = dump(pid)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert done.returncode == 1
        assert f"process {pid} does not answer (stopped?)" in done.stderr
    assert job.finish(30).code == 0


def test_a_dump_of_another_process_or_file_is_an_error(launcher, tmp_path):
    own = dump(os.getpid())
    assert own.returncode == 1 and "is not a rank of horocache, and has started none" in own.stderr
    assert "there is no process 999999999 here" in dump(999999999).stderr
    (tmp_path / "x.json").write_text('{"a": 1}')
    for file, why in ((tmp_path / "x.json", "is not a flight record"), (tmp_path / "none", "cannot read")):
        done = dump(file)
        assert done.returncode != 0 and why in done.stderr and "Traceback" not in done.stderr


def records_below(folder):
    records = [json.loads(path.read_text()) for path in sorted(folder.rglob("flight-*.json"))]
    return {record["rank"]: record for record in records}


def test_an_error_leaves_a_flight_record_on_every_rank_that_raised_it(launcher):
    finished = launcher.worker(3, "waits.py", "failing")
    assert finished.code == 0, finished.report()
    records = records_below(launcher.state / "horocache")
    assert sorted(records) == [0, 1, 2]
    for record in records.values():
        assert record["why"].startswith("Mismatch: allreduce 'allreduce.bad'"), record["why"]
        happened = [(event["what"], event.get("name")) for event in record["events"]]
        assert ("done", "allreduce.before") in happened
        assert happened.count(("failed", "allreduce.bad")) == 3, "the record of the last error lacks earlier errors"
        assert 'waits.py", line ' in record["stacks"]
    assert "flight-" not in finished.stderr, "the program has handled these errors\n" + finished.report()
    shown = dump(*sorted((launcher.state / "horocache").iterdir()))
    assert shown.returncode == 0 and "failed    allreduce 'allreduce.bad', 4 B" in shown.stdout


def test_flight_records_go_to_the_output_folder_or_a_chosen_folder_or_are_off(launcher, tmp_path):
    out = tmp_path / "out"
    assert launcher.worker(2, "waits.py", "failing", flags=["--output-dir", str(out)]).code == 0
    assert sorted(path.parent.name for path in out.rglob("flight-*.json")) == ["rank.0", "rank.1"]
    chosen = tmp_path / "new" / "folder"
    flags = ["--output-dir", str(out / "2"), "--flight-record", str(chosen)]
    assert launcher.worker(2, "waits.py", "failing", flags=flags).code == 0
    assert sorted(records_below(chosen)) == [0, 1]
    finished = launcher.worker(2, "waits.py", "failing", flags=["--flight-record", "off"])
    assert finished.code == 0 and "flight" not in finished.stderr
    assert not (launcher.state / "horocache").exists()


def test_a_flight_record_that_cannot_be_written_is_one_warning_on_each_rank(launcher):
    finished = launcher.worker(2, "waits.py", "failing-for-good", flags=["--flight-record", "/proc/nowhere"])
    assert finished.code == 1, finished.report()
    for rank in range(2):  # the launcher repeats the last lines of one rank
        lines = [line for line in finished.stderr.splitlines() if line.startswith(f"[{rank}] ")]
        assert sum(".json.new': No such file or directory" in line for line in lines) == 1, finished.report()


def test_a_killed_rank_leaves_a_flight_record_on_every_survivor(launcher):
    finished = launcher.worker(3, "victim.py", "1", "kill", "during")
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    records = records_below(launcher.state / "horocache")
    assert sorted(records) == [0, 2]
    for record in records.values():
        assert "rank 1" in record["why"]
        assert finished.stderr.count(f"rank{record['rank']}.json (horocache dump FILE") == 1, finished.report()
        assert any("rank 1 (pid" in event.get("note", "") for event in record["events"])


@pytest.mark.parametrize("signal_flag", ["0", "10"])
def test_the_stack_signal_can_be_changed_or_switched_off(launcher, signal_flag):
    job = launcher.start(*worker_command(2, "waits.py", "absent-in-native-code", flags=["--stack-signal", signal_flag]))
    job.wait_for_file("pid")
    try:
        done = dump(*[pid for pid in marked(job.mark) if pid != job.process.pid])
    finally:
        (launcher.scratch / "go on").touch()
    assert ("keep_the_lock" in done.stdout) == (signal_flag == "10")
    assert job.finish(30).code == 0


def test_the_stack_signal_is_harmless_while_other_threads_run(launcher):
    program = (
        "import signal, threading, horocache as hc\n"
        "hc.init()\n"
        "over = threading.Event()\n"
        "def deep(n):\n"
        "    return n and 1 + deep(n - 1)\n"
        "def run():\n"
        "    while not over.is_set():\n"
        "        deep(50)\n"
        "runner = threading.Thread(target=run)\n"
        "runner.start()\n"
        "def ask():\n"
        "    for _ in range(10000):\n"  # a few would crash a process that reads frames while they change
        "        signal.pthread_kill(threading.main_thread().ident, 60)\n"
        "    over.set()\n"
        "asker = threading.Thread(target=ask)\n"
        "asker.start()\n"
        "asker.join(); runner.join()\n"
    )
    finished = launcher.run("-c", program, module=None)
    assert (finished.code, finished.stderr) == (0, ""), finished.report()
