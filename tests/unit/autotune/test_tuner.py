"""Rank 0's thread that tunes, on a runtime that takes settings and counts steps."""

from __future__ import annotations

import itertools
import re
import time

import pytest

pytest.importorskip("optuna")

from horocache.autotune import tuner as tuning
from horocache.autotune.search import Search
from horocache.errors import InternalError, InvalidArgumentError

DEFAULT = "cycle_time=1\nfusion_threshold=134217728\ncache=1"
LIMIT_S = 30


class FakeRuntime:
    """Counts steps as the test says, and keeps the settings that it is given."""

    cross_size = 1

    def __init__(self, **knobs):
        values = {"autotune": "1", "autotune_load": "", "autotune_log": "", "autotune_save": "", "tuning_table": ""}
        values |= {"autotune_warmup_samples": "1", "autotune_steps_per_sample": "2"}
        values |= {"autotune_bayes_opt_max_samples": "3", "cache_capacity": "1024", "cycle_time": "1"}
        values |= {"fusion_threshold": "134217728", **knobs}
        self.values = {name: (value, "default") for name, value in values.items()}
        self.steps, self.given, self.error = 0, [], None

    def knobs(self):
        return self.values

    def backends(self, process_set):
        return [("shm", (), ())]

    def metrics(self):
        if self.error is not None and self.given:
            error, self.error = self.error, None
            raise error
        return {"steps": self.steps, "payload_bytes": 1000 * self.steps}

    def configure(self, text):
        self.given.append(text)


def train(runtime, tuner, ended, takes=True, steps_at_once=1):
    """Count steps until ``ended()``; the optimizer takes changes unless it is gone."""
    limit = time.monotonic() + LIMIT_S
    for step in itertools.count(1):
        if ended():
            return
        assert time.monotonic() < limit, runtime.given
        if takes:
            tuner.take_change(step)
        runtime.steps += steps_at_once
        time.sleep(0.001)


def said(caplog):
    return [record.getMessage() for record in caplog.records]


def started(runtime, groups=None):
    tuner = tuning.Tuner(runtime, "")
    if groups is not None:
        tuner.offer_groups(groups)
    tuner.start()
    return tuner


def test_an_error_of_the_search_brings_the_default_back(monkeypatch, caplog):
    def fails(search, score):
        if search.measured == 1:
            raise ZeroDivisionError("no model")
        return tell(search, score)

    tell = Search.tell
    monkeypatch.setattr(Search, "tell", fails)
    runtime = FakeRuntime()
    tuner = started(runtime)
    train(runtime, tuner, lambda: said(caplog))
    assert runtime.given[-2] != DEFAULT and runtime.given[-1] == DEFAULT
    (message,) = said(caplog)
    assert re.search(r"the settings are fusion_threshold=134217728, cycle_time=1, cache=1: no model", message)
    tuner.stop()


def test_an_optimizer_that_makes_no_more_steps_ends_the_tuning_and_does_not_keep_the_default_away(caplog):
    runtime = FakeRuntime()
    tuner = started(runtime, groups=5)
    train(runtime, tuner, lambda: said(caplog), takes=False, steps_at_once=100)
    assert runtime.given == [DEFAULT]
    assert "made no step in" in said(caplog)[0] and "num_groups=5" in said(caplog)[0]
    tuner.take_change(7)  # it steps again
    assert runtime.given == [DEFAULT, "note=num_groups=5 from_step=10"]
    tuner.stop()


def test_a_second_note_waits_until_all_ranks_have_the_first(caplog):
    runtime = FakeRuntime()
    runtime.error = InternalError("no counters")  # right after the first note
    tuner = started(runtime, groups=5)
    train(runtime, tuner, lambda: sum("note=" in text for text in runtime.given) == 2)
    noted = [int(re.search(r"from_step=(\d+)", text)[1]) - 3 for text in runtime.given if "note=" in text]
    assert noted[1] >= noted[0] + 4
    assert said(caplog)
    tuner.stop()


def test_steps_right_after_a_note_give_no_second_one():
    runtime = FakeRuntime(autotune_load="best.json")
    tuner = tuning.Tuner(runtime, "", {"num_groups": 3})
    tuner.offer_groups(5)
    tuner.take_change(10)
    tuner.offer_groups(5)
    for step in range(11, 16):
        tuner.take_change(step)
    assert runtime.given == [f"note=num_groups=3 from_step={step}" for step in (13, 17)]


def test_a_job_that_ends_is_no_error_of_the_tuning(caplog):
    runtime = FakeRuntime()
    tuner = started(runtime)
    train(runtime, tuner, lambda: len(runtime.given) == 2)
    runtime.error = InternalError("the daemon has stopped")
    tuner.stop()
    assert all("too early for a result" in text for text in said(caplog))


def test_files_that_cannot_be_written_any_more_are_one_warning_each(tmp_path, caplog):
    folder = tmp_path / "gone"
    folder.mkdir()
    runtime = FakeRuntime(autotune_log=str(folder / "log.csv"), autotune_save=str(folder / "best.json"))
    tuning.check(runtime.knobs(), is_rank_0=True)
    folder.rmdir()
    tuner = started(runtime)
    train(runtime, tuner, lambda: len(said(caplog)) == 3)
    log, result, save = said(caplog)
    assert log.startswith("autotune: the log of samples ends: [Errno 2]")
    assert "settings" in result and save.startswith("autotune: the result is not saved: [Errno 2]")
    tuner.stop()


@pytest.mark.parametrize("name", ["autotune_log", "autotune_save"])
@pytest.mark.parametrize(
    ("path", "words"), [("nowhere/file", "the folder {}/nowhere does not exist"), (".", "it is a folder; name a file")]
)
def test_a_path_that_cannot_be_written_is_an_error_on_rank_0_at_the_start(tmp_path, name, path, words):
    knobs = FakeRuntime(**{name: str(tmp_path / path)}).knobs()
    with pytest.raises(InvalidArgumentError, match=rf"^HOROCACHE_{name.upper()}=.*{words.format(tmp_path)}"):
        tuning.check(knobs, is_rank_0=True)
    assert tuning.check(knobs, is_rank_0=False) is None
