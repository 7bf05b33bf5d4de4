"""Autotune in jobs of three ranks that train: the settings change on all ranks, and the training does not."""

from __future__ import annotations

import csv
import json
import re
import signal

import pytest

pytest.importorskip("optuna")
pytest.importorskip("torch")

FEW = ["--autotune-warmup-samples=1", "--autotune-steps-per-sample=2", "--autotune-bayes-opt-max-samples=4"]
TUNED = ["--autotune", *FEW]
STEPS = "150"


def done(finished):
    """The reports of all ranks at the end of the training."""
    assert finished.code == 0, finished.report()
    return [finished.reports_of(rank)["done"] for rank in range(3)]


def untuned(launcher):
    return done(launcher.worker(3, "tuned_training.py", STEPS, "-1"))[0]["sums"]


@pytest.mark.parametrize("sleeper", [0, 1])
def test_a_tuned_training_has_the_same_result_and_equal_groups_on_all_ranks(launcher, sleeper):
    log = launcher.scratch / "log.csv"
    flags = [*TUNED, f"--autotune-log-file={log}"]
    ranks = done(launcher.worker(3, "tuned_training.py", STEPS, str(sleeper), flags=flags))
    assert len(ranks[0]["groups"]) > 1
    assert all(rank["groups"] == ranks[0]["groups"] for rank in ranks)
    assert [rank["sums"] for rank in ranks] == [untuned(launcher)] * 3
    rows = list(csv.DictReader(log.open()))
    assert list(rows[0]) == ["sample", "score", "step_ms", "fusion_threshold", "cycle_time", "cache", "num_groups"]
    assert float(rows[0]["score"]) > 0 and rows[0]["fusion_threshold"] == "134217728"


def test_the_result_is_said_saved_and_given_back(launcher):
    saved = launcher.scratch / "best.json"
    flags = [*TUNED, f"--autotune-save={saved}"]
    finished = launcher.worker(3, "tuned_training.py", "tuned", "-1", flags=flags)
    assert len({str(rank["groups"]) for rank in done(finished)}) == 1
    assert re.search(r"autotune: .*settings.*fusion_threshold=.*tuning took \d+ steps and", finished.stderr)
    kept = json.loads(saved.read_text())
    assert set(kept["settings"]) == {"fusion_threshold", "cycle_time", "cache", "num_groups"}
    kept["settings"] |= {"num_groups": 3, "cache": 0}
    saved.write_text(json.dumps(kept))
    again = done(launcher.worker(3, "tuned_training.py", "30", "1", flags=[f"--autotune-load={saved}"]))
    assert [rank["groups"] for rank in again] == [[[0, 1], [3, 3]]] * 3


def test_settings_of_the_user_are_not_tuned(launcher):
    log = launcher.scratch / "log.csv"
    flags = [*TUNED, f"--autotune-log-file={log}", "--fusion-threshold=1000", "--cycle-time-ms=2"]
    done(launcher.worker(3, "tuned_training.py", "tuned", "-1", flags=flags))
    assert next(csv.reader(log.open())) == ["sample", "score", "step_ms", "cache", "num_groups"]


def test_a_job_that_ends_while_it_is_tuned_says_so_and_keeps_the_log(launcher):
    log = launcher.scratch / "log.csv"
    flags = ["--autotune", "--autotune-warmup-samples=1", "--autotune-steps-per-sample=2", f"--autotune-log-file={log}"]
    # 22 samples take at least 44 steps; rank 0 sleeps in these, so that some samples are done.
    finished = launcher.worker(3, "tuned_training.py", "40", "0", flags=flags)
    done(finished)
    assert re.search(r"the job ended after \d+ of 22 samples", finished.stderr), finished.report()
    assert log.read_text().startswith("sample,score")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_a_job_that_is_tuned(launcher, victim):
    flags = [*TUNED, f"--fault=done:{victim}:300=kill"]
    finished = launcher.worker(3, "tuned_training.py", "2000", "-1", flags=flags)
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    assert f"rank {victim} of 3 failed first: it was killed by SIGKILL" in finished.stderr


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--autotune-steps-per-sample=0", "autotune_steps_per_sample"),
        ("--autotune-gaussian-process-noise=2", "autotune_gaussian_process_noise"),
        ("--autotune-load=nowhere.json", "autotune file nowhere.json: cannot be opened"),
        (
            "--autotune-log-file=nowhere/log.csv",
            "HOROCACHE_AUTOTUNE_LOG=nowhere/log.csv: the folder ",
        ),
    ],
)
def test_a_bad_value_is_an_error_at_the_start(launcher, flag, words):
    finished = launcher.worker(3, "tuned_training.py", "3", "-1", flags=["--autotune", flag, "--start-timeout=5"])
    assert finished.code != 0
    assert words in finished.stderr.replace("-", "_").replace("HOROCACHE_", "").lower() + finished.stderr
