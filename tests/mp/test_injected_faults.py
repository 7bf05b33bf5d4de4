"""Injected faults: a rank fails while an operation is submitted, starts, moves data, or has just finished."""

import signal

import pytest

PLACES = ["submit", "start", "data", "done"]
SHORT = ["--stall-check-time-seconds", "0.5", "--stall-shutdown-time-seconds", "1.5"]


def check(finished, victim, errors):
    for rank in {0, 1, 2} - {victim}:
        reports = finished.reports_of(rank)
        assert "wrong" not in reports, finished.report()
        assert "failed" in reports, finished.report()
        assert reports["step"]["error"] in errors, finished.report()
        assert f"rank {victim}" in reports["step"]["text"], finished.report()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_killed_at_any_place_of_an_operation_is_named(launcher, place, victim):
    finished = launcher.worker(3, "faulty.py", flags=["--fault", f"{place}:{victim}:7=kill"])
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    check(finished, victim, {"PeerLostError"})


@pytest.mark.parametrize("place", PLACES)
def test_a_rank_stopped_at_any_place_of_an_operation_fails_the_others(launcher, place):
    finished = launcher.worker(3, "faulty.py", flags=["--fault", f"{place}:1:7=stop", "--grace", "0.5", *SHORT])
    assert finished.code == 3, finished.report()
    check(finished, 1, {"StallError", "AbortedError"})


@pytest.mark.parametrize("place", PLACES)
def test_a_rank_that_fails_at_any_place_of_an_operation_is_named(launcher, place):
    finished = launcher.worker(3, "faulty.py", flags=["--fault", f"{place}:1:7=error"])
    assert finished.code == 3, finished.report()
    check(finished, 1, {"AbortedError"})


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_rank_without_memory_at_any_place_of_an_operation_ends_the_job(launcher, place):
    finished = launcher.worker(3, "faulty.py", flags=["--fault", f"{place}:1:7=memory"])
    assert finished.code == 3, finished.report()
    check(finished, 1, {"AbortedError"})
    report = finished.reports_of(1)["step"]
    assert report["error"] == "OutOfMemoryError", finished.report()
    assert "MemoryError" in report["bases"], finished.report()


def test_an_invalid_fault_starts_no_rank(launcher):
    finished = launcher.worker(2, "faulty.py", flags=["--fault", "data:1=explode"])
    assert finished.code == 2, finished.report()
    assert "explode" in finished.stderr
    assert "kill, stop, exit, error" in finished.stderr
