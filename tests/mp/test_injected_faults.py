"""Faults at points that no script can hit from outside: while an operation starts, moves data, or has just finished."""

import signal

import pytest

PLACES = ["submit", "start", "data", "done"]
SHORT = ["--stall-check-time-seconds", "0.5", "--stall-shutdown-time-seconds", "1.5"]


def check(finished, victim, errors):
    for rank in {0, 1, 2} - {victim}:
        said = finished.said(rank)
        assert "wrong" not in said, finished.report()
        assert "failed" in said, finished.report()
        assert said["step"]["error"] in errors, finished.report()
        assert f"rank {victim}" in said["step"]["text"], finished.report()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_killed_anywhere_in_an_operation_is_named(launcher, place, victim):
    finished = launcher.worker(3, "faulty.py", flags=["--fault", f"{place}:{victim}:7=kill"])
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    check(finished, victim, {"PeerLostError"})


@pytest.mark.parametrize("place", PLACES)
def test_a_rank_stopped_anywhere_in_an_operation_is_given_up(launcher, place):
    finished = launcher.worker(3, "faulty.py", flags=["--fault", f"{place}:1:7=stop", "--grace", "0.5", *SHORT])
    assert finished.code == 3, finished.report()
    check(finished, 1, {"StallError", "AbortedError"})


@pytest.mark.parametrize("place", PLACES)
def test_a_rank_that_fails_anywhere_in_an_operation_is_named(launcher, place):
    finished = launcher.worker(3, "faulty.py", flags=["--fault", f"{place}:1:7=error"])
    assert finished.code == 3, finished.report()
    check(finished, 1, {"AbortedError"})


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_rank_without_memory_anywhere_in_an_operation_has_an_error_and_tells_the_others(launcher, place):
    finished = launcher.worker(3, "faulty.py", flags=["--fault", f"{place}:1:7=memory"])
    assert finished.code == 3, finished.report()
    check(finished, 1, {"AbortedError"})
    poor = finished.said(1)["step"]
    assert poor["error"] == "OutOfMemoryError", finished.report()
    assert "MemoryError" in poor["bases"], finished.report()


def test_a_fault_that_does_not_parse_starts_nothing(launcher):
    finished = launcher.worker(2, "faulty.py", flags=["--fault", "data:1=explode"])
    assert finished.code == 2, finished.report()
    assert "explode" in finished.stderr
    assert "kill, stop, exit, error" in finished.stderr
