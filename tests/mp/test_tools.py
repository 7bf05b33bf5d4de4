"""``horocache doctor`` and ``horocache bench`` as a user runs them."""

import json
import os
import shutil
from pathlib import Path

import pytest

from horocache import _core


def doctor(launcher, *arguments, **keywords):
    return launcher.run("doctor", *arguments, module="horocache.tools", **keywords)


def findings(finished):
    report = json.loads(finished.stdout)
    return {(finding["section"], finding["name"]): finding for finding in report["findings"]}, report["ok"]


def test_the_doctor_finds_no_problem_and_shows_every_knob(launcher):
    finished = doctor(launcher, "--json")
    found, ok = findings(finished)
    assert ok and finished.code == 0, finished.report()
    for knob in _core.knob_table():
        assert ("knobs", knob["name"]) in found
    assert ("libraries", "MPI") in found
    assert ("system", "shared memory") in found
    assert finished.err == b""


def test_the_doctor_shows_the_source_of_each_value(launcher):
    env = {"HOROCACHE_CYCLE_TIME": "2.5", "HOROVOD_CACHE_CAPACITY": "99"}
    found, _ = findings(doctor(launcher, "--json", env=env))
    assert found["knobs", "cycle_time"]["value"] == "2.5  [environment: HOROCACHE_CYCLE_TIME]"
    assert found["knobs", "cache_capacity"]["value"] == "99  [horovod environment: HOROVOD_CACHE_CAPACITY]"
    assert found["knobs", "fusion_threshold"]["value"].endswith("[default]")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"HOROCACHE_CYCLE_TIM": "2"}, "did you mean 'HOROCACHE_CYCLE_TIME'?"),
        ({"HOROCACHE_CYCLE_MODE": "tok"}, "event, tick"),
        ({"HOROCACHE_RANK": "5", "HOROCACHE_SIZE": "2"}, "5"),
    ],
)
def test_the_doctor_names_the_problem_and_the_fix(launcher, env, words):
    finished = doctor(launcher, env=env)
    assert finished.code == 1, finished.report()
    assert "Traceback" not in finished.stderr
    assert words in finished.stdout
    assert "fix: " in finished.stdout
    assert "1 problem: " in finished.stdout.splitlines()[-1]


def test_the_doctor_warns_of_horovod_variables_without_effect(launcher):
    finished = doctor(launcher, env={"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CYCLE_TIME": "2"})
    assert finished.code == 0, finished.report()
    assert "HOROVOD_GPU_OPERATIONS" in finished.stdout
    assert "[horovod environment: HOROVOD_CYCLE_TIME]" in finished.stdout
    assert "1 warning" in finished.stdout.splitlines()[-1]


def test_a_start_up_directory_that_others_can_enter_is_a_problem(launcher):
    folder = launcher.tmp / f"horocache-{os.getuid()}"
    folder.mkdir(mode=0o755)
    try:
        finished = doctor(launcher)
        assert finished.code == 1
        assert "is not private" in finished.stdout
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["cure"],
        ["bench"],
        ["bench", "allreduce", "-b", "many"],
        ["doctor", "-x"],
        ["bench", "alltoall", "-b", "1M", "-e", "1K"],
        ["bench", "allreduce", "-b", "100000G", "-e", "200000G"],
        ["bench", "control", "--tensors", "600000"],
    ],
)
def test_a_mistake_is_one_line(launcher, arguments):
    finished = launcher.run(*arguments, module="horocache.tools")
    assert finished.code == 2, finished.report()
    assert len(finished.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_the_allreduce_benchmark_checks_its_values(launcher, dtype):
    sizes = ["-b", "4", "-e", "64K", "-f", "16"]
    arguments = ["bench", "allreduce", "-np", "3", *sizes, "-n", "2", "-w", "1", "-d", dtype]
    finished = launcher.run(*arguments, module="horocache.tools", deadline_s=60)
    assert finished.code == 0, finished.report()
    lines = finished.stdout.splitlines()
    assert lines[1].split() == ["#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"]
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [4, 64, 1024, 16384]
    assert all(row[-1] == "0" for row in rows)


def test_the_alltoall_benchmark_checks_its_values(launcher):
    arguments = ["bench", "alltoall", "-np", "2", "-b", "8", "-e", "1K", "-f", "8", "-n", "2", "-w", "1", "--json"]
    finished = launcher.run(*arguments, module="horocache.tools", deadline_s=60)
    assert finished.code == 0, finished.report()
    rows = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [row["size"] for row in rows] == [8, 64, 512]
    assert all(row["wrong"] == 0 and row["ranks"] == 2 for row in rows)


def test_the_control_benchmark_counts_rounds_with_the_cache_and_without(launcher):
    arguments = ["bench", "control", "-np", "2", "--tensors", "20", "-n", "5", "-w", "2", "--json"]
    finished = launcher.run(*arguments, module="horocache.tools", deadline_s=60)
    assert finished.code == 0, finished.report()
    cached, uncached = [json.loads(line) for line in finished.stdout.splitlines()]
    assert (cached["cache"], uncached["cache"]) == ("on", "off")
    # Not zero: while all ranks wait, an occasional round checks whether the waits can end.
    assert cached["slow_rounds"] < 1 <= uncached["slow_rounds"]
    assert cached["cache_hits"] >= 20
    assert uncached["cache_hits"] == 0
    assert cached["wrong"] == uncached["wrong"] == 0


def test_the_doctor_loads_the_driver_that_the_knob_names(launcher):
    fake = Path(__file__).resolve().parents[2] / "build" / "dev" / "tests" / "fake_gpu" / "libcuda_fake.so.1"
    found, _ = findings(doctor(launcher, "--json", env={"HOROCACHE_CUDA_LIBRARY": str(fake)}))
    assert found["libraries", "CUDA"]["value"].startswith("driver for CUDA 13.0, 1 device(s) at "), found
    missing = doctor(launcher, env={"HOROCACHE_CUDA_LIBRARY": "libcuda-nowhere.so.1"})
    assert "not found (needed for CUDA tensors)" in missing.stdout
