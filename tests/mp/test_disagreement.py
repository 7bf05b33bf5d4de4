"""Ranks that disagree: errors that name both ranks and both values, stall reports, and jobs that go on."""

import json
import sys

import pytest
from harness import WORKERS, worker_command

ODD = 2


def test_every_mismatch_names_both_ranks_and_both_values_and_the_job_goes_on(launcher):
    finished = launcher.worker(3, "mismatches.py", deadline_s=60)
    assert finished.code == 0, finished.report()
    cases = {
        "shape": ["'allreduce.shape'", "[4]", "[5]"],
        "shape.cached": ["'allreduce.shape'", "[4]", "[5]"],
        "dtype": ["'allreduce.dtype'", "float32", "float64"],
        "dtype.cached": ["'allreduce.dtype'", "float32", "float64"],
        "reduce-op": ["'allreduce.op'", "sum", "max"],
        "scale": ["'allreduce.scale'", "0.5", "0.25"],
        "root": ["'broadcast.root'", "root 0", "root 1"],
        "rows": ["'allgather.rows'", "2]", "3]"],
        "alltoall": ["'alltoall.alltoall'", "2]", "5]"],
        "group-size": ["group", "2 tensors", "3 tensors"],
    }
    for rank in range(3):
        reports = finished.reports_of(rank)
        for what, words in cases.items():
            assert reports[what]["error"] == "MismatchError", f"{what} on rank {rank}\n{finished.report()}"
            assert f"rank {ODD}" in reports[what]["text"]
            assert "rank 0" in reports[what]["text"] or "rank 1" in reports[what]["text"]
            for word in words:
                assert word in reports[what]["text"].lower(), f"{word} for {what} on rank {rank}\n{finished.report()}"
        assert "done" in reports


def test_invalid_splits_raise_on_the_rank_that_gives_them(launcher):
    finished = launcher.worker(3, "mismatches.py", deadline_s=60)
    for rank in range(3):
        reports = finished.reports_of(rank)
        assert reports["splits"]["error"] == "InvalidArgumentError"
        assert "6 > 3" in reports["splits"]["text"]
        assert reports["splits-count"]["error"] == "InvalidArgumentError"
        assert "2 entries, 3 workers" in reports["splits-count"]["text"]


def test_a_name_in_flight_raises_and_the_first_operation_completes(launcher):
    finished = launcher.worker(2, "mismatches.py", deadline_s=60)
    reports = finished.reports_of(0)
    assert reports["duplicate"]["error"] == "DuplicateNameError", finished.report()
    assert "ValueError" in reports["duplicate"]["bases"]
    assert "twice" in reports["duplicate"]["text"]
    for rank in range(2):
        assert finished.reports_of(rank)["first-of-twice"]["value"] == 2.0


LONG = ["--stall-check-time-seconds", "3600", "--stall-shutdown-time-seconds", "7200"]
SHORT = ["--stall-check-time-seconds", "0.3", "--stall-shutdown-time-seconds", "1.2"]


@pytest.mark.parametrize(
    ("scenario", "binding"), [("certain-deadlock", "native"), ("circle", "native"), ("circle", "cffi")]
)
def test_a_certain_deadlock_fails_at_once_on_every_rank(launcher, scenario, binding):
    # The limits are hours: only the detection of the deadlock can end the waits.
    env = {"HOROCACHE_BINDING": binding}
    finished = launcher.worker(3, "waits.py", scenario, flags=LONG, env=env, deadline_s=30)
    assert finished.code == 0, finished.report()
    for rank in range(3):
        reports = finished.reports_of(rank)
        assert reports["wait"]["error"] == "StallError", finished.report()
        name = {"certain-deadlock": "mine" if rank == 0 else "theirs", "circle": f"turn.{rank}"}[scenario]
        assert name in reports["wait"]["text"], finished.report()
        # The error names the operation that this rank waits for, and the one that the other rank waits for.
        other = {"certain-deadlock": "theirs" if rank == 0 else "mine", "circle": f"turn.{(rank + 1) % 3}"}[scenario]
        assert f"waits, itself, for allreduce 'allreduce.{other}'" in reports["wait"]["text"], finished.report()
        assert reports["after"]["error"] is None, finished.report()


def test_two_ranks_that_wait_for_each_other_fail_while_others_compute(launcher):
    finished = launcher.worker(4, "waits.py", "circle-of-two", flags=LONG, deadline_s=30)
    assert finished.code == 0, finished.report()
    for rank in range(2):
        report = finished.reports_of(rank)["wait"]
        assert report["error"] == "StallError", finished.report()
        assert f"turn.{rank}" in report["text"], finished.report()
    assert all(finished.reports_of(rank)["after"]["error"] is None for rank in range(4)), finished.report()


def test_a_wait_with_a_time_limit_is_no_deadlock(launcher):
    finished = launcher.worker(3, "waits.py", "circle-for-a-while", flags=LONG, deadline_s=30)
    assert finished.code == 0, finished.report()
    for rank in range(3):
        reports = finished.reports_of(rank)
        assert reports["wait"]["error"] == "TimeoutError", finished.report()
        assert reports["all"]["error"] is None, finished.report()
        assert reports["after"]["error"] is None, finished.report()


def test_a_thread_that_has_not_submitted_yet_may_end_the_wait_of_another_rank(launcher):
    finished = launcher.worker(2, "waits.py", "threads-that-come-late", flags=LONG, deadline_s=30)
    assert finished.code == 0, finished.report()
    for rank in range(2):
        reports = finished.reports_of(rank)
        assert all(reports[f"{when}.{turn}"]["error"] is None for when in ("early", "late") for turn in (1, 2)), reports


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_may_wait_in_different_orders(launcher, ranks):
    finished = launcher.worker(ranks, "waits.py", "crossed", flags=LONG)
    assert finished.code == 0, finished.report()
    assert all("crossed" in finished.reports_of(rank) for rank in range(ranks))


def test_a_tensor_on_some_ranks_only_is_reported_on_every_rank_and_then_fails(launcher):
    finished = launcher.worker(3, "waits.py", "some-ranks-only", flags=SHORT)
    assert finished.code == 0, finished.report()
    report = finished.reports_of(0)["wait"]
    assert report["error"] == "StallError", finished.report()
    assert "lonely" in report["text"]
    for rank in range(3):
        reports = [line for line in finished.stderr.splitlines() if line.startswith(f"[{rank}] ") and "lonely" in line]
        assert reports, f"rank {rank} did not report\n{finished.report()}"
        assert finished.reports_of(rank)["after"]["error"] is None, finished.report()


def test_a_late_rank_causes_a_report_and_no_error(launcher):
    flags = ["--stall-check-time-seconds", "0.2", "--stall-shutdown-time-seconds", "20"]
    job = launcher.start(*worker_command(3, "waits.py", "late", flags=flags))
    job.wait_for_errors(lambda errors: "'allreduce.late' was submitted by rank 0 and not by ranks 1, 2" in errors)
    (launcher.scratch / "reported").touch()
    finished = job.finish(30)
    assert finished.code == 0, finished.report()
    assert all(finished.reports_of(rank)["wait"]["error"] is None for rank in range(3)), finished.report()


def test_an_error_of_one_rank_ends_the_waits_of_the_others(launcher):
    finished = launcher.worker(3, "waits.py", "bad-splits-on-one-rank", flags=LONG, deadline_s=30)
    assert finished.code == 0, finished.report()
    assert finished.reports_of(1)["mistake"]["error"] == "InvalidArgumentError"
    for rank in range(3):
        assert finished.reports_of(rank)["wait"]["error"] == "StallError", finished.report()
    assert all(finished.reports_of(rank)["after"]["error"] is None for rank in range(3)), finished.report()


def test_names_may_have_any_characters(launcher):
    finished = launcher.worker(2, "names.py", deadline_s=60)
    assert finished.code == 0, finished.report()
    for rank in range(2):
        reports = finished.reports_of(rank)
        assert reports["done"]["value"] == 2.0
        assert reports["too-long"]["error"] == "InvalidArgumentError", finished.report()
        for index in range(9):
            text = reports[f"mismatch.{index}"]["text"]
            assert reports[f"mismatch.{index}"]["error"] == "MismatchError", finished.report()
            assert text.isprintable(), f"a terminal cannot show {json.dumps(text)}"
            assert "[3]" in text
            assert "[4]" in text
        assert 'quo"te' in reports["mismatch.0"]["text"] or 'quo\\"te' in reports["mismatch.0"]["text"]


@pytest.mark.parametrize(
    ("variable", "words"),
    [("CACHE_CAPACITY", ("cache_capacity",)), ("HOST_ID", ("HOROCACHE_HOST_ID", "mpiexec"))],
)
def test_different_knobs_are_an_error_with_all_values_on_every_rank(launcher, variable, words):
    skewed = f'HOROCACHE_{variable}=$((RANK + 10)) exec "$@"'
    command = ["-np", "2", "--grace", "10", "bash", "-c", skewed, "bash"]
    worker = [sys.executable, str(WORKERS / "victim.py"), "9", "none", "before"]
    finished = launcher.run(*command, *worker)
    assert finished.code == 3, finished.report()
    for rank in range(2):
        report = finished.reports_of(rank)["init"]
        assert report["error"] == "VersionSkewError", finished.report()
        for word in (*words, "10", "11"):
            assert word in report["text"], finished.report()
