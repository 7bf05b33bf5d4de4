"""Ranks that disagree: errors that name both ranks and both values, reports, and jobs that go on."""

import json

import pytest
from harness import worker_command

ODD = 2


def test_every_mismatch_names_both_ranks_and_both_values_and_the_job_goes_on(launcher):
    finished = launcher.worker(3, "mismatches.py", deadline_s=60)
    assert finished.code == 0, finished.report()
    both = {
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
        said = finished.said(rank)
        for what, words in both.items():
            assert said[what]["error"] == "MismatchError", f"{what} on rank {rank}\n{finished.report()}"
            assert f"rank {ODD}" in said[what]["text"]
            assert "rank 0" in said[what]["text"] or "rank 1" in said[what]["text"]
            for word in words:
                assert word in said[what]["text"].lower(), f"{word} for {what} on rank {rank}\n{finished.report()}"
        assert "done" in said


def test_bad_splits_are_this_rank_s_own_mistake(launcher):
    finished = launcher.worker(3, "mismatches.py", deadline_s=60)
    for rank in range(3):
        said = finished.said(rank)
        assert said["splits"]["error"] == "InvalidArgumentError"
        assert "6 > 3" in said["splits"]["text"]
        assert said["splits-count"]["error"] == "InvalidArgumentError"
        assert "2 entries, 3 workers" in said["splits-count"]["text"]


def test_a_name_submitted_twice_is_refused_and_the_first_completes(launcher):
    finished = launcher.worker(2, "mismatches.py", deadline_s=60)
    said = finished.said(0)
    assert said["duplicate"]["error"] == "DuplicateNameError", finished.report()
    assert "ValueError" in said["duplicate"]["bases"]
    assert "twice" in said["duplicate"]["text"]
    for rank in range(2):
        assert finished.said(rank)["first-of-twice"]["value"] == 2.0


LONG = ["--stall-check-time-seconds", "3600", "--stall-shutdown-time-seconds", "7200"]
SHORT = ["--stall-check-time-seconds", "0.3", "--stall-shutdown-time-seconds", "1.2"]


@pytest.mark.parametrize(
    ("scenario", "binding"), [("certain-deadlock", "native"), ("circle", "native"), ("circle", "cffi")]
)
def test_waits_that_nothing_can_end_fail_at_once_on_every_rank(launcher, scenario, binding):
    # The limits are hours: only the detection of the deadlock can end the waits.
    env = {"HOROCACHE_BINDING": binding}
    finished = launcher.worker(3, "waits.py", scenario, flags=LONG, env=env, deadline_s=30)
    assert finished.code == 0, finished.report()
    for rank in range(3):
        said = finished.said(rank)
        assert said["wait"]["error"] == "StallError", finished.report()
        name = {"certain-deadlock": "mine" if rank == 0 else "theirs", "circle": f"turn.{rank}"}[scenario]
        assert name in said["wait"]["text"], finished.report()
        # The error names the operation that this rank waits for, and the one that the other rank waits for.
        other = {"certain-deadlock": "theirs" if rank == 0 else "mine", "circle": f"turn.{(rank + 1) % 3}"}[scenario]
        assert f"waits, itself, for allreduce 'allreduce.{other}'" in said["wait"]["text"], finished.report()
        assert said["after"]["error"] is None, finished.report()


def test_two_ranks_that_wait_for_each_other_fail_though_others_compute(launcher):
    finished = launcher.worker(4, "waits.py", "circle-of-two", flags=LONG, deadline_s=30)
    assert finished.code == 0, finished.report()
    for rank in range(2):
        said = finished.said(rank)["wait"]
        assert said["error"] == "StallError", finished.report()
        assert f"turn.{rank}" in said["text"], finished.report()
    assert all(finished.said(rank)["after"]["error"] is None for rank in range(4)), finished.report()


def test_a_wait_with_a_time_limit_is_no_deadlock(launcher):
    finished = launcher.worker(3, "waits.py", "circle-for-a-while", flags=LONG, deadline_s=30)
    assert finished.code == 0, finished.report()
    for rank in range(3):
        said = finished.said(rank)
        assert said["wait"]["error"] == "TimeoutError", finished.report()
        assert said["all"]["error"] is None, finished.report()
        assert said["after"]["error"] is None, finished.report()


def test_ranks_wait_for_a_thread_that_computes_or_loads_data_before_its_first_operation(launcher):
    finished = launcher.worker(2, "waits.py", "threads-that-come-late", flags=LONG, deadline_s=30)
    assert finished.code == 0, finished.report()
    for rank in range(2):
        said = finished.said(rank)
        assert all(said[f"{when}.{turn}"]["error"] is None for when in ("early", "late") for turn in (1, 2)), said


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_waits_in_different_orders_are_no_problem(launcher, ranks):
    finished = launcher.worker(ranks, "waits.py", "crossed", flags=LONG)
    assert finished.code == 0, finished.report()
    assert all("crossed" in finished.said(rank) for rank in range(ranks))


def test_a_tensor_on_some_ranks_only_is_reported_on_every_rank_and_then_fails(launcher):
    finished = launcher.worker(3, "waits.py", "some-ranks-only", flags=SHORT)
    assert finished.code == 0, finished.report()
    said = finished.said(0)["wait"]
    assert said["error"] == "StallError", finished.report()
    assert "lonely" in said["text"]
    for rank in range(3):
        reports = [line for line in finished.stderr.splitlines() if line.startswith(f"[{rank}] ") and "lonely" in line]
        assert reports, f"rank {rank} did not report\n{finished.report()}"
        assert finished.said(rank)["after"]["error"] is None, finished.report()


def test_a_rank_that_comes_late_gets_a_report_and_no_error(launcher):
    flags = ["--stall-check-time-seconds", "0.2", "--stall-shutdown-time-seconds", "20"]
    job = launcher.start(*worker_command(3, "waits.py", "late", flags=flags))
    job.wait_for_errors(lambda errors: "'allreduce.late' was submitted by rank 0 and not by ranks 1, 2" in errors)
    (launcher.scratch / "reported").touch()
    finished = job.finish(30)
    assert finished.code == 0, finished.report()
    assert all(finished.said(rank)["wait"]["error"] is None for rank in range(3)), finished.report()


def test_one_rank_s_own_mistake_ends_the_others_wait(launcher):
    finished = launcher.worker(3, "waits.py", "bad-splits-on-one-rank", flags=LONG, deadline_s=30)
    assert finished.code == 0, finished.report()
    assert finished.said(1)["mistake"]["error"] == "InvalidArgumentError"
    for rank in range(3):
        assert finished.said(rank)["wait"]["error"] == "StallError", finished.report()
    assert all(finished.said(rank)["after"]["error"] is None for rank in range(3)), finished.report()


def test_names_may_hold_anything(launcher):
    finished = launcher.worker(2, "names.py", deadline_s=60)
    assert finished.code == 0, finished.report()
    for rank in range(2):
        said = finished.said(rank)
        assert said["done"]["value"] == 2.0
        assert said["too-long"]["error"] == "InvalidArgumentError", finished.report()
        for index in range(9):
            text = said[f"mismatch.{index}"]["text"]
            assert said[f"mismatch.{index}"]["error"] == "MismatchError", finished.report()
            assert text.isprintable(), f"a terminal cannot show {json.dumps(text)}"
            assert "[3]" in text
            assert "[4]" in text
        assert 'quo"te' in said["mismatch.0"]["text"] or 'quo\\"te' in said["mismatch.0"]["text"]


@pytest.mark.parametrize(
    ("variable", "words"),
    [("CACHE_CAPACITY", ("cache_capacity",)), ("HOST_ID", ("HOROCACHE_HOST_ID", "mpiexec"))],
)
def test_knobs_that_must_agree_and_do_not_are_a_table_of_values_on_every_rank(launcher, variable, words):
    skewed = f'HOROCACHE_{variable}=$((RANK + 10)) exec "$@"'
    command = ["-np", "2", "--grace", "10", "bash", "-c", skewed, "bash", *worker("victim.py", "9", "none", "before")]
    finished = launcher.run(*command)
    assert finished.code == 3, finished.report()
    for rank in range(2):
        said = finished.said(rank)["init"]
        assert said["error"] == "VersionSkewError", finished.report()
        for word in (*words, "10", "11"):
            assert word in said["text"], finished.report()


def worker(script, *arguments):
    import sys

    from harness import WORKERS

    return [sys.executable, str(WORKERS / script), *arguments]
