"""A rank ends or stops: every survivor soon gets an error that names the rank, and the job leaves nothing behind."""

import os
import re
import signal

import pytest

LOST = {"PeerLostError"}
LEFT = {"ShutDownError", "PeerLostError"}  # the rank still ran its exit handlers
RAISED = {"AbortedError", "PeerLostError"}
# Seconds within which every survivor must have its error. Ranks of one host need less than 1 s; the rest allows for a
# busy machine.
SECONDS = 4.0


def check_survivors(launcher, finished, victim, ranks, errors, words=()):
    ended_at = float((launcher.scratch / "ended_at").read_text())
    for rank in set(range(ranks)) - {victim}:
        reports = finished.reports_of(rank)
        assert "pending" in reports or any("large" in what for what in reports), finished.report()
        failed = [line for what, line in reports.items() if line.get("error") and what != "next"]
        assert len(failed) == 1, finished.report()
        assert failed[0]["error"] in errors, finished.report()
        assert re.search(rf"\brank(s|\(s\))? {victim}\b", failed[0]["text"]), finished.report()
        for word in words:
            assert word in failed[0]["text"], finished.report()
        assert failed[0]["at"] - ended_at < SECONDS, finished.report()
        assert reports["next"]["error"] is not None, "the call after the failure must fail, too\n" + finished.report()
        assert "wrong" not in reports


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named_on_every_survivor(launcher, when, victim):
    finished = launcher.worker(3, "victim.py", str(victim), "kill", when)
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    assert f"rank {victim} of 3 failed first: it was killed by SIGKILL" in finished.stderr
    check_survivors(launcher, finished, victim, 3, LOST, ["signal 9"])


def test_a_rank_that_ends_after_a_loss_is_not_taken_for_the_cause(launcher):
    finished = launcher.worker(4, "follows.py", flags=["--grace", "20"])
    for rank in (0, 1, 3):
        pending = finished.reports_of(rank)["pending"]
        assert pending["error"] == "PeerLostError", finished.report()
        assert re.search(r"rank 2 \(pid \d+ on this host\) was killed by signal 9", pending["text"]), finished.report()


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_rank_that_vanishes_without_its_exit_handlers_is_lost(launcher, when):
    finished = launcher.worker(3, "victim.py", "1", "exit-at-once", when)
    assert finished.code == 5, finished.report()
    check_survivors(launcher, finished, 1, 3, LOST)


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize(("how", "code"), [("exit", 5), ("raise-exit", 5), ("exit-well", 3), ("raise", 1)])
def test_a_rank_that_exits_or_raises_is_named_on_every_survivor(launcher, how, code, when):
    finished = launcher.worker(3, "victim.py", "1", how, when)
    # The exit handlers inform the others, which may then end before the rank itself. The launcher must not take one of
    # them for the rank that failed first.
    assert finished.code == code, finished.report()
    assert ("rank 1 of 3 failed first" in finished.stderr) == (how != "exit-well"), finished.report()
    assert ("ValueError: the data are bad" in finished.stderr) == (how == "raise")
    words = ["it ended with exit code 5"] if how == "raise-exit" else []
    check_survivors(launcher, finished, 1, 3, LEFT if how == "exit-well" else RAISED, words)


@pytest.mark.parametrize("binding", ["native", "cffi", "torch", "tensorflow"])
def test_operations_in_flight_keep_their_memory_when_a_rank_ends(launcher, binding):
    if binding in ("torch", "tensorflow"):
        pytest.importorskip(binding)
    env = {"HOROCACHE_BINDING": "cffi"} if binding == "cffi" else {}
    finished = launcher.worker(2, "leaves.py", binding, env=env, deadline_s=60)
    assert finished.code == 0, finished.report()
    assert finished.reports_of(0)["results"]["right"], finished.report()
    assert finished.reports_of(1)["others"]["untouched"], finished.report()


def test_the_rank_that_raised_is_named_and_not_ranks_that_failed_later(launcher):
    finished = launcher.worker(3, "crash.py")
    assert finished.code == 1, finished.report()
    assert "rank 1 of 3 failed first: it exited with code 1" in finished.stderr, finished.report()
    assert "    ValueError: the data are bad" in finished.stderr, finished.report()
    warning = "[horocache rank {}] WARNING: rank 1 aborted: it raised ValueError: the data are bad\n"
    assert warning.format(1) not in finished.stderr, "the warning would interrupt the traceback\n" + finished.report()
    for rank in (0, 2):
        assert re.search(rf"rank {rank} \(pid \d+\) exited with code 1 .*: rank 1 aborted: ", finished.stderr)
        before, _, after = finished.stderr.partition(f"[{rank}] " + warning.format(rank))
        assert f"[{rank}] Traceback" in after and f"[{rank}] Traceback" not in before, finished.report()


@pytest.mark.parametrize(("where", "ranks"), [("compressor", 3), ("hook", 2)])
def test_an_exception_in_user_code_within_a_step_reaches_all_ranks(launcher, needs_torch, where, ranks):
    finished = launcher.worker(ranks, "hooks.py", where, deadline_s=60)
    assert finished.code in (1, 3), finished.report()
    assert "ValueError: the user's code is wrong" in finished.stderr
    check_survivors(launcher, finished, 1, ranks, {"AbortedError"}, ["it raised ValueError: the user's code is wrong"])


def test_a_killed_rank_with_running_fork_workers_is_lost(launcher):
    finished = launcher.worker(3, "victim.py", "1", "kill-with-children", "after")
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    check_survivors(launcher, finished, 1, 3, LOST, ["signal 9"])


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_stopped_rank_is_reported_and_then_fails_the_others(launcher, when):
    flags = ["--stall-check-time-seconds", "0.5", "--stall-shutdown-time-seconds", "1.5"]
    finished = launcher.worker(3, "victim.py", "1", "stop", when, flags=flags)
    assert finished.code == 3, finished.report()
    check_survivors(launcher, finished, 1, 3, {"StallError", "PeerLostError", "AbortedError"})
    for rank in (0, 2):
        assert f"[{rank}] [horocache rank {rank}] WARNING: " in finished.stderr, finished.report()


def test_a_rank_that_holds_the_gil_is_reported_and_then_fails_the_others(launcher):
    flags = ["--stall-check-time-seconds", "0.3", "--stall-shutdown-time-seconds", "0.9"]
    finished = launcher.worker(3, "victim.py", "1", "hold", "after", flags=flags)
    assert finished.code == 3, finished.report()
    check_survivors(launcher, finished, 1, 3, {"StallError"}, ["'allreduce.never'", "'allreduce.early.0'"])
    for rank in range(3):  # also on rank 1, whose progress thread needs no Python
        lines = [line for line in finished.stderr.splitlines() if line.startswith(f"[{rank}] ")]
        assert any("not by rank 1" in line for line in lines), finished.report()
    assert re.search(r"rank 1 \(pid \d+\) was still running and was ended by horocacherun", finished.stderr)


def test_a_crash_before_init_is_named_with_the_signal_the_host_and_the_last_lines(launcher):
    # The launcher ends the others, which would otherwise wait for the start timeout of half a minute.
    finished = launcher.worker(3, "victim.py", "2", "crash", "before-init", flags=["--grace", "0.5"], deadline_s=20)
    assert finished.code == 128 + signal.SIGSEGV, finished.report()
    for words in (
        "rank 2 of 3 failed first: it was killed by SIGSEGV (signal 11)",
        os.uname().nodename,
        "    about to follow a null pointer",
        "rank 0 (pid",
        "rank 1 (pid",
    ):
        assert words in finished.stderr, finished.report()


@pytest.mark.parametrize("how", ["kill", "exit", "raise"])
def test_a_rank_that_ends_before_init_is_named_by_the_others(launcher, how):
    flags = ["--start-timeout", "1.0", "--grace", "10"]
    finished = launcher.worker(3, "victim.py", "1", how, "before-init", flags=flags)
    assert finished.code == {"kill": 137, "exit": 5, "raise": 1}[how], finished.report()
    for rank in (0, 2):
        report = finished.reports_of(rank)["init"]
        assert report["error"] == "StartupError", finished.report()
        assert re.search(r"\brank(s|\(s\))? 1\b", report["text"]), finished.report()


def test_a_rank_0_that_ends_before_init_is_named_by_the_others(launcher):
    flags = ["--start-timeout", "1.0", "--grace", "10"]
    finished = launcher.worker(3, "victim.py", "0", "kill", "before-init", flags=flags)
    for rank in (1, 2):
        report = finished.reports_of(rank)["init"]
        assert report["error"] == "StartupError", finished.report()
        assert "rank 0" in report["text"], finished.report()


@pytest.mark.parametrize("count", [100, 20_000])
def test_the_error_of_a_rank_reaches_ranks_that_exchange_messages_with_it(launcher, count):
    finished = launcher.worker(3, "messages.py", "raise", str(count))
    for rank in (0, 2):
        report = finished.reports_of(rank)["exchange"]
        assert report["error"] == "AbortedError", finished.report()
        assert "rank 1 aborted: it raised RuntimeError: the reason" in report["text"], finished.report()


def test_a_rank_goes_on_after_its_program_closed_all_descriptors(launcher):
    finished = launcher.worker(3, "messages.py", "close", "100")
    assert finished.code == 0, finished.report()
    for rank in range(3):
        assert finished.reports_of(rank)["exchange"]["error"] is None, finished.report()
    assert finished.reports_of(1)["files"]["sizes"] == [0] * 20, finished.report()
