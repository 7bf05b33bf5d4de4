"""Scores of samples, the log, and the file with a result."""

from __future__ import annotations

import pytest

from horocache.autotune import space
from horocache.autotune.files import Log, Saved, load, save
from horocache.autotune.sample import SKIPPED_STEPS, Sample
from horocache.errors import InvalidArgumentError

MS = 1_000_000


def score_of(times_ms, step_bytes=1000, steps=None):
    """The score of steps that last so long, each observed at its end."""
    sample, now = Sample(steps or len(times_ms), 100), 5_000 * MS
    for number in range(100, 100 + SKIPPED_STEPS + 1):
        assert sample.observe(number, number * step_bytes, now) is None
        now += 500 * MS
    begin = 100 + SKIPPED_STEPS
    now -= 500 * MS
    for number, each in enumerate(times_ms, begin + 1):
        now += each * MS
        score = sample.observe(number, number * step_bytes, now)
    return score


def test_the_score_is_the_bytes_of_a_step_by_the_median_of_the_step_times():
    score = score_of([20, 20, 20, 20, 900, 20, 20])
    assert score.bytes_per_second == pytest.approx(1000 / 0.020)
    assert score.step_s == pytest.approx(0.020)
    assert score.steps == SKIPPED_STEPS + 7


def test_short_steps_are_measured_for_a_tenth_of_a_second():
    assert score_of([2] * 20, steps=10) is None
    assert score_of([2] * 50, steps=10) is not None


def test_an_interval_of_several_steps_counts_as_so_many():
    sample = Sample(4, 0)
    for number in range(SKIPPED_STEPS + 1):
        sample.observe(number, 0, number * 1000 * MS)
    begin, start = SKIPPED_STEPS, SKIPPED_STEPS * 1000 * MS
    score = sample.observe(begin + 4, 4000, start + 200 * MS)
    assert score.step_s == pytest.approx(0.05) and score.bytes_per_second == pytest.approx(20_000)


def test_an_observation_without_a_step_changes_nothing():
    sample = Sample(1, 0)
    assert all(sample.observe(3, 0, i * MS) is None for i in range(1000))


def test_settings_become_lines_and_an_equal_table_is_left_out():
    point = {"fusion_threshold": 1 << 20, "cycle_time": 0.5, "cache": 0, "table": 1, "hierarchical_allreduce": 1}
    text = space.settings_text(point, "broadcast=shm", "broadcast=shm")
    assert text.splitlines() == [
        "cycle_time=0.5",
        "fusion_threshold=1048576",
        "cache=0",
        "table=allreduce=mpi/twolevel;broadcast=shm",
    ]
    assert "table" not in space.settings_text({"cache": 1}, "broadcast=shm", "broadcast=shm")
    assert space.settings_text({"table": 0}, "broadcast=shm", "broadcast=shm") == "table="


def test_a_default_between_the_values_takes_its_place():
    made = space.parameter("num_groups", space.NUM_GROUPS, 4)
    assert made.values == (1, 2, 3, 4, 5, 10, 20, 0)


def test_a_result_is_saved_and_loaded(tmp_path):
    settings = {"fusion_threshold": 1 << 20, "cycle_time": 0.5, "cache": 0, "num_groups": 5}
    save(Saved(settings, 2.0, 1.0), tmp_path / "a.json")
    assert load(tmp_path / "a.json") == settings
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "truncated"),
        ('{"settings": {}, "bytes_per_second": 1, "default_bytes_per_second": 1, "version": 2}', "/version"),
        ('{"settings": {}, "bytes_per_second": 1, "default_bytes_per_second": 1, "more": 2}', "more"),
        (
            '{"settings": {"cash": 1}, "bytes_per_second": 1, "default_bytes_per_second": 1}',
            "there are fusion_threshold",
        ),
        ('{"settings": {"cache": 2}, "bytes_per_second": 1, "default_bytes_per_second": 1}', "settings/cache is 2"),
        ('{"settings": {"num_groups": 1.5}, "bytes_per_second": 1, "default_bytes_per_second": 1}', "whole number"),
        ('{"settings": {"cache": "1"}, "bytes_per_second": 1, "default_bytes_per_second": 1}', "/settings"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_place(tmp_path, text, words):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"autotune file .*bad\.json") as caught:
        load(path)
    assert words in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cannot be opened: No such file"):
        load(tmp_path / "none.json")


def test_each_sample_is_in_the_log_at_once(tmp_path):
    log = Log(str(tmp_path / "log.csv"), ["cache", "cycle_time"])
    log.add(1e6, 0.0125, [1, 0.5])
    assert (tmp_path / "log.csv").read_text() == "sample,score,step_ms,cache,cycle_time\n1,1e+06,12.5,1,0.5\n"
