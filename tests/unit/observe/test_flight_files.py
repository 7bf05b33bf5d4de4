"""The folder of flight records: old and unfinished records are removed, other files stay."""

import os
import time

import pytest

from horocache.core import flight_files


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "horocache"
    made.mkdir()
    return made


def make(folder, name, age_s):
    (folder / name).write_text("{}")
    os.utime(folder / name, (time.time() - age_s, time.time() - age_s))


def left(folder):
    assert flight_files.default_folder({"XDG_STATE_HOME": str(folder.parent)}) == str(folder)
    return {path.name for path in folder.iterdir()}


def test_an_unfinished_record_is_removed_after_an_hour(folder):
    make(folder, "flight-a-rank0.json.new", 3700)
    make(folder, "flight-b-rank1.json.new", 60)
    make(folder, "flight-c-rank0.json", 90000)
    assert left(folder) == {"flight-b-rank1.json.new", "flight-c-rank0.json"}


def test_the_newest_256_records_stay(folder):
    for number in range(260):
        make(folder, f"flight-job-rank{number}.json", number)
    assert left(folder) == {f"flight-job-rank{number}.json" for number in range(256)}


def test_other_files_stay(folder):
    names = [
        "notes.new",
        "flight.json",
        "flight-a-rank0.json.new.new",
        "flight-a-rankx.json.new",
        "my-flight-a-rank0.json",
    ]
    for name in names:
        make(folder, name, 90000)
    assert left(folder) == set(names)


def test_a_missing_folder_is_not_created(tmp_path):
    assert flight_files.default_folder({"XDG_STATE_HOME": str(tmp_path)}) == str(tmp_path / "horocache")
    assert list(tmp_path.iterdir()) == []
