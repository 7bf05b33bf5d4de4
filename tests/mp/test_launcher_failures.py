"""The end of a job: a rank fails, a signal stops the launcher, or the launcher is killed."""

import json
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest
from harness import guardians, wait_until_gone
from processes import marked

OMP = {"OMP_NUM_THREADS": "1"}

# Helpers for the rank programs: `ready` writes this process's number into a file, `wait_for` waits for a file.
READY = """
import os, sys, time, signal, subprocess
def ready(name=None):
    name = name or "ready." + os.environ["RANK"]
    open(name + ".part", "w").write(str(os.getpid()))
    os.rename(name + ".part", name)
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.01)
rank = int(os.environ["RANK"])
"""


def python(code):
    return [sys.executable, "-c", READY + textwrap.dedent(code)]


def test_the_exit_code_is_that_of_the_first_rank_that_failed(launcher):
    code = """
    if rank == 1:
        print("the disk is full", file=sys.stderr)
        sys.exit(7)
    wait_for("never") if rank == 2 else sys.exit(0)
    """
    finished = launcher.run("-np", "3", "--grace", "0.3", *python(code), env=OMP)
    assert finished.code == 7, finished.report()
    assert "rank 1 of 3 failed first: it exited with code 7" in finished.stderr
    assert "    the disk is full" in finished.stderr
    assert "rank 2 (pid" in finished.stderr
    assert "was still running and was ended by horocacherun with SIGTERM" in finished.stderr
    assert "rank 0 (pid" not in finished.stderr


CONSEQUENCE = """
import atexit, os, sys, time
from pathlib import Path
other = Path(os.environ["HC_TEST_SCRATCH"], "rank0")
def when_rank_0_is_gone():
    while True:
        try: os.kill(int(other.read_text()), 0)
        except ProcessLookupError: return
        time.sleep(0.02)
if os.environ["RANK"] == "1": atexit.register(when_rank_0_is_gone)  # runs last
import horocache as hc
hc.init()
if hc.rank() == 0: other.write_text(str(os.getpid()))
hc.barrier()
print(end="", flush=True)
if hc.rank() == 1:
    %s
try:
    hc.allreduce([1.0], name="x")
except hc.HorocacheError as error:
    raise RuntimeError(f"callback failed: {type(error).__name__}: {error}") from None
"""


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        ("print('the reason', file=sys.stderr); sys.exit(7)", 7, "it exited with code 7"),
        ("hc.abort('bad data'); sys.stderr.write('the reason'); time.sleep(60)", 1, "it aborted (bad data), and was"),
    ],
)
def test_the_rank_that_failed_is_named_although_other_ranks_end_first(launcher, end, code, how):
    finished = launcher.run("-np", "2", "--grace", "1", sys.executable, "-c", CONSEQUENCE % end, env=OMP)
    assert finished.code == code, finished.report()
    assert f"rank 1 of 2 failed first: {how}" in finished.stderr
    # The core's own warning may come before or after the reason.
    assert "    the reason" in finished.stderr.partition("last lines of rank 1's stderr:\n")[2], finished.report()
    assert "rank 0 (pid" in finished.stderr and "exited with code 1" in finished.stderr


def test_a_rank_killed_by_a_signal_is_named_with_the_signal_and_host(launcher):
    code = """
    if rank == 0:
        ready()
        os.kill(os.getpid(), signal.SIGSEGV)
    wait_for("ready.0")
    pid = open("ready.0").read()
    while os.path.exists("/proc/" + pid): time.sleep(0.01)  # it is there until the launcher has seen its end
    sys.exit("rank 0 is gone")
    """
    finished = launcher.run("-np", "2", *python(code), env=OMP)
    assert finished.code == 128 + signal.SIGSEGV
    assert "rank 0 of 2 failed first: it was killed by SIGSEGV (signal 11)" in finished.stderr
    assert os.uname().nodename in finished.stderr
    assert "exited with code 1" in finished.stderr
    assert "rank 0 is gone" in finished.stderr.splitlines()[-1]


def test_a_rank_killed_while_it_writes_a_timeline_leaves_complete_files(launcher, tmp_path):
    code = """
    import horocache as hc
    hc.init()
    for step in range(10_000):
        hc.barrier()
        if rank == 1 and step == 5_000: os.kill(os.getpid(), signal.SIGKILL)
    """
    finished = launcher.run("-np", "2", "--timeline-filename", str(tmp_path / "t.json"), *python(code), env=OMP)
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "t.rank1.json"]
    for path in tmp_path.iterdir():
        assert json.loads(path.read_text())[0]["ph"] == "M"


def test_survivors_have_the_grace_period_to_end_by_themselves(launcher):
    code = """
    if rank == 1: sys.exit(3)
    time.sleep(1)
    print("saved")
    """
    finished = launcher.run("-np", "2", "--grace", "20", *python(code), env=OMP)
    assert finished.code == 3
    assert finished.of_rank(0) == ["saved"]
    assert finished.seconds < 15


def test_a_rank_that_ignores_term_or_is_stopped_is_killed(launcher):
    code = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 0: wait_for("ready.1"), wait_for("ready.2"), sys.exit(1)
    ready()
    os.kill(os.getpid(), signal.SIGSTOP) if rank == 2 else wait_for("never")
    wait_for("never")
    """
    finished = launcher.run("-np", "3", "--grace", "0.3", *python(code), env=OMP)
    assert finished.code == 1
    assert finished.stderr.count("ended by horocacherun with SIGKILL") == 2, finished.report()


def test_grandchildren_and_daemons_of_the_ranks_end_with_the_job(launcher):
    code = """
    subprocess.Popen(["sleep", "300"])
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    subprocess.Popen(["env", "-i", "sleep", "300"], stdout=subprocess.DEVNULL)
    os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else sys.exit(0)
    """
    finished = launcher.run("-np", "2", "--grace", "0.5", *python(code), env=OMP)
    assert finished.code == 137
    assert "left 6 behind" in finished.stderr, finished.report()


def test_a_job_that_succeeds_leaves_no_daemons(launcher):
    finished = launcher.run("-np", "2", "bash", "-c", "sleep 300 & exit 0", env=OMP)
    assert finished.code == 0, finished.report()
    assert "left 2 behind" in finished.stderr
    assert "sleep (pid" in finished.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_ranks_and_the_exit_code_is_128_plus_its_number(launcher, signum):
    code = f"""
    def stop(number, frame):
        print("got", number)
        sys.exit(0)
    signal.signal({int(signum)}, stop)
    ready()
    wait_for("never")
    """
    job = launcher.start("-np", "2", *python(code), env=OMP)
    for rank in range(2):
        job.wait_for_file(f"ready.{rank}")
    job.process.send_signal(signum)
    finished = job.finish(20)
    assert finished.code == 128 + signum, finished.report()
    assert finished.of_rank(0) == finished.of_rank(1) == [f"got {int(signum)}"]
    assert "failed first" not in finished.stderr


def test_ranks_that_ignore_the_signal_are_killed_after_the_grace_period(launcher):
    code = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ready()
    wait_for("never")
    """
    job = launcher.start("-np", "2", "--grace", "0.3", *python(code), env=OMP)
    for rank in range(2):
        job.wait_for_file(f"ready.{rank}")
    job.process.send_signal(signal.SIGINT)
    assert job.finish(20).code == 130


def test_a_second_interrupt_kills_at_once(launcher):
    code = """
    signal.signal(signal.SIGINT, lambda *_: ready("interrupted." + str(rank)))
    ready()
    wait_for("never")
    """
    job = launcher.start("-np", "2", "--grace", "600", *python(code), env=OMP)
    for rank in range(2):
        job.wait_for_file(f"ready.{rank}")
    job.process.send_signal(signal.SIGINT)
    for rank in range(2):
        job.wait_for_file(f"interrupted.{rank}")
    job.process.send_signal(signal.SIGINT)
    finished = job.finish(20)
    assert finished.code == 130
    assert "killing the ranks" in finished.stderr


def test_signals_of_batch_systems_are_passed_on_without_ending_the_job(launcher):
    code = """
    signal.signal(signal.SIGUSR1, lambda *_: ready("warned." + str(rank)))
    ready()
    wait_for("warned.0")
    wait_for("warned.1")
    """
    job = launcher.start("-np", "2", *python(code), env=OMP)
    for rank in range(2):
        job.wait_for_file(f"ready.{rank}")
    job.process.send_signal(signal.SIGUSR1)
    assert job.finish(20).code == 0


def test_a_suspended_launcher_suspends_its_ranks(launcher):
    code = """
    ready()
    wait_for("go")
    """
    job = launcher.start("-np", "2", *python(code), env=OMP)
    pids = [int(job.wait_for_file(f"ready.{rank}")) for rank in range(2)]

    def not_stopped():
        states = {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] for pid in [*pids, job.process.pid]}
        return [pid for pid, state in states.items() if state != "T"]

    job.process.send_signal(signal.SIGTSTP)
    wait_until_gone("running processes are", not_stopped)
    job.process.send_signal(signal.SIGCONT)
    (launcher.scratch / "go").touch()
    assert job.finish(20).code == 0


def test_when_the_launcher_is_killed_the_guardian_ends_every_rank(launcher):
    code = """
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    os.kill(os.getpid(), signal.SIGSTOP) if rank == 1 else wait_for("never")
    """
    job = launcher.start("-np", "3", "--grace", "0.3", *python(code), env=OMP)
    for rank in range(3):
        job.wait_for_file(f"ready.{rank}")
    assert len(guardians(job.process.pid)) == 1
    assert any(launcher.tmp.iterdir())
    job.process.kill()
    job.process.wait()
    began = time.monotonic()
    # The launcher's pipes close at once, so that a reader of its output does not wait for the guardian.
    wait_until_gone("ranks are", lambda: marked(job.mark), 10)
    assert job.finish(10).code == -signal.SIGKILL
    assert time.monotonic() - began < 10


def test_when_launcher_and_guardian_are_killed_together_the_kernel_ends_every_rank(launcher):
    code = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    os.kill(os.getpid(), signal.SIGSTOP) if rank == 1 else wait_for("never")
    """
    shell = 'trap "" TERM HUP; "$@"; true'
    job = launcher.start("-np", "2", "bash", "-c", shell, "-", *python(code), env=OMP)
    for rank in range(2):
        job.wait_for_file(f"ready.{rank}")
    (guardian,) = guardians(job.process.pid)
    job.process.send_signal(signal.SIGSTOP)  # so that it does not see the guardian end
    os.kill(guardian, signal.SIGKILL)
    job.process.kill()
    assert job.finish(20).code == -signal.SIGKILL
    wait_until_gone("ranks are", lambda: marked(job.mark))
    assert len(list(launcher.tmp.iterdir())) == 2, "not exactly the folder and its lock file are left"
    assert launcher.run("-np", "1", "true").code == 0, "the next job, which removes the folder, failed"


def test_the_limit_of_processes_is_an_error_of_one_line(launcher):
    # The limit does not apply to root, which therefore becomes another user. That user may be unable to read this
    # interpreter, so a first job loads everything.
    code = """if True:
        import os, resource, sys
        from horocache.launch import cli
        assert cli.main(["-np", "1", "true"]) == 0
        os.chmod(os.environ["TMPDIR"], 0o777)
        if os.geteuid() == 0:
            os.setresuid(65533, 65533, 65533)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        sys.exit(cli.main(["-np", "2", "true"]))
    """
    launcher.scratch.chmod(0o755)
    finished = launcher.run("-c", code, module=None, env=OMP)
    assert finished.code == 1, finished.report()
    (line,) = finished.stderr.splitlines()
    assert line.startswith("horocacherun: cannot start the guardian process, and so no rank: Resource temporarily")
    assert "ulimit -u" in line


def test_the_guardian_holds_none_of_the_callers_files(launcher):
    job = launcher.start("-np", "1", *python('ready(); wait_for("go")'), env=OMP)
    job.wait_for_file("ready.0")
    (guardian,) = guardians(job.process.pid)
    open_files = {str(Path(f"/proc/{guardian}/fd/{fd}").readlink()) for fd in ("1", "2")}
    assert open_files == {"/dev/null"}
    assert os.getsid(guardian) == guardian
    (launcher.scratch / "go").touch()
    assert job.finish(20).code == 0


def test_the_loss_of_the_guardian_is_a_warning_and_the_job_goes_on(launcher):
    job = launcher.start("-np", "1", *python('ready(); wait_for("go")'), env=OMP)
    job.wait_for_file("ready.0")
    (guardian,) = guardians(job.process.pid)
    os.kill(guardian, signal.SIGKILL)
    wait_until_gone("the guardian is", lambda: guardians(job.process.pid))
    (launcher.scratch / "go").touch()
    finished = job.finish(20)
    assert finished.code == 0
    assert "the guardian process is gone" in finished.stderr


def test_a_launcher_inside_a_rank_ends_with_the_outer_job(launcher):
    inner = READY + "ready('inner.' + os.environ['RANK'])\nwait_for('never')"
    nested = [sys.executable, "-m", "horocache.launch", "-np", "2", "--grace", "0.3", sys.executable, "-c", inner]
    job = launcher.start("-np", "1", "--grace", "1", *nested, env=OMP)
    for rank in range(2):
        job.wait_for_file(f"inner.{rank}")
    job.process.kill()
    job.process.wait()
    wait_until_gone("ranks of either job are", lambda: marked(job.mark), 15)


def test_a_signal_reaches_commands_behind_a_shell(launcher):
    code = READY + "ready(); wait_for('never')"
    (launcher.scratch / "rank.py").write_text(code)
    job = launcher.start("-np", "2", "bash", "-c", f"'{sys.executable}' rank.py; echo after", env=OMP)
    for rank in range(2):
        job.wait_for_file(f"ready.{rank}")
    job.process.send_signal(signal.SIGTERM)
    assert job.finish(20).code == 143
