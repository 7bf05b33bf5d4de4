"""Jobs that load compiled programs from folders: choice of a program, invalid files, a slow rank, constant memory.

HC_TEST_OPERATIONS is the number of small operations during which memory must not grow.
"""

import os
import signal
import sys
import time

import msgspec
import pytest
from harness import worker_command

from horocache.lang import algorithms, compile_program, save_program

OPERATIONS = int(os.environ.get("HC_TEST_OPERATIONS", "1200"))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "programs"
    path.mkdir()
    return path


def save(folder, name, program, **changes):
    save_program(msgspec.structs.replace(compile_program(program), **changes), folder / f"{name}.program.json")


def ran(finished, ranks):
    assert finished.code == 0, finished.report()
    return [finished.reports_of(rank)["programs"]["ran"] for rank in range(ranks)]


def test_a_program_in_rank_order_runs_by_default_and_others_need_a_knob(launcher, folder):
    save(folder, "pairs", algorithms.all_pairs(3), max_bytes=65536)
    save(folder, "ring", algorithms.ring(3), min_bytes=65536)
    programs = {"HOROCACHE_PROGRAMS": str(folder), "HOROCACHE_INLINE_MAX": "0"}
    assert ran(launcher.worker(3, "programs.py", env=programs), 3) == [2] * 3
    allowed = programs | {"HOROCACHE_PROGRAMS_ANY_ORDER": "1"}
    assert ran(launcher.worker(3, "programs.py", env=allowed), 3) == [3] * 3
    named = programs | {"HOROCACHE_SELECT": "allreduce:64k-=program/ring"}
    assert ran(launcher.worker(3, "programs.py", env=named), 3) == [3] * 3


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_program_for_another_number_of_ranks_fails_the_start(launcher, folder, ranks):
    save(folder, "ring", algorithms.ring(4))
    finished = launcher.worker(ranks, "programs.py", env={"HOROCACHE_PROGRAMS": str(folder)})
    assert finished.code != 0
    assert f"program 'ring' is for 4 ranks, and this job has {ranks}" in finished.stderr, finished.report()


def test_a_folder_for_another_number_of_ranks_is_ignored(launcher, folder):
    (folder / "4ranks").mkdir()
    save(folder / "4ranks", "ring", algorithms.ring(4))
    assert ran(launcher.worker(2, "programs.py", env={"HOROCACHE_PROGRAMS": str(folder)}), 2) == [0, 0]


def test_ranks_with_different_programs_do_not_start(launcher, folder):
    for rank, slots in enumerate((1, 2)):
        (folder / str(rank)).mkdir()
        save(folder / str(rank), "ring", algorithms.ring(2, slots=slots))
    each = f'export HOROCACHE_PROGRAMS="{folder}/$RANK"; exec "$@"'
    command = worker_command(2, "programs.py")
    at = command.index(sys.executable)
    finished = launcher.run(*command[:at], "bash", "-c", each, "bash", *command[at:])
    assert finished.code != 0
    assert "programs" in finished.stderr and "ring" in finished.stderr, finished.report()


@pytest.mark.parametrize(
    ("contents", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"{", "is not JSON"),
        (b'{"format": "horocache.program", "version": 99}', "/version: 99"),
    ],
)
def test_an_invalid_program_file_fails_the_start_with_its_name(launcher, folder, contents, why):
    where = folder / "bad.program.json"
    if contents is None:
        folder = folder / "nowhere"
    else:
        where.write_bytes(contents)
    finished = launcher.worker(2, "programs.py", env={"HOROCACHE_PROGRAMS": str(folder)})
    assert finished.code != 0
    assert why in finished.stderr and str(folder) in finished.stderr, finished.report()


@pytest.mark.parametrize("slots", [1, 8])
def test_a_rank_that_is_stopped_for_a_second_does_not_change_results(launcher, folder, slots):
    save(folder, "ring", algorithms.ring(2, slots=slots))
    flags = ["--select", "allreduce=program/ring"]
    job = launcher.start(
        *worker_command(2, "programs.py", "slow", flags=flags), env={"HOROCACHE_PROGRAMS": str(folder)}
    )
    pid = int(job.wait_for_file("pid1"))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(pid, signal.SIGCONT)
    assert ran(job.finish(40), 2) == [41, 41]


@pytest.mark.timeout(120 + OPERATIONS // 10)
def test_more_than_a_thousand_small_operations_do_not_make_memory_grow(launcher, folder):
    save(folder, "pairs", algorithms.all_pairs(4))
    programs = {
        "HOROCACHE_PROGRAMS": str(folder),
        "HOROCACHE_INLINE_MAX": "0",
        "HC_TEST_OPERATIONS": str(OPERATIONS),
        "PYTHONMALLOC": "malloc",
    }
    finished = launcher.worker(4, "programs.py", "flat", env=programs, deadline_s=100 + OPERATIONS / 20)
    assert ran(finished, 4) == [300 + OPERATIONS] * 4
    for rank in range(4):
        memory = finished.reports_of(rank)["memory"]
        assert memory["allocated_kib"] < 64 and memory["mappings"] < 16, finished.report()
        assert memory["descriptors"] == 0, finished.report()
