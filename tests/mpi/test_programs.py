"""Compiled programs whose ranks are on several hosts: through memory within a host, over MPI between hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from mpi_jobs import REPOSITORY, flavour, run_worker, tried_with

sys.path.insert(0, str(REPOSITORY / "tests"))

from conformance.programs import save_for_every_operation

from horocache.lang import Program, algorithms, compile_program, save_program


def save(folder: Path, programs: Iterable[Program]) -> None:
    folder.mkdir(exist_ok=True)
    for program in programs:
        save_program(compile_program(program), folder / f"{program.name}.program.json")


def test_every_operation_conforms_as_a_program(tmp_path):
    layout = "01" if flavour() == "mpich" else "010"
    folder = save_for_every_operation(tmp_path / "programs", len(layout))
    job = run_worker("programs", len(layout), layout, "conform", env={"HOROCACHE_PROGRAMS": str(folder)})
    assert job.code == 0, job.report()
    ran = [int(line) for line in job.lines("ran ")]
    assert len(ran) == len(layout) and min(ran) == max(ran) > 50, job.report()


@pytest.mark.parametrize(
    "layout", [pytest.param("0011", marks=tried_with("openmpi")), pytest.param("0123", marks=tried_with("mpich"))]
)
def test_allreduce_programs_run_between_hosts_beside_other_operations(layout, tmp_path):
    four = [algorithms.ring(4), algorithms.all_pairs(4), algorithms.hierarchical(2, 2), algorithms.binary_tree(4)]
    save(tmp_path / "4ranks", four)
    save(tmp_path / "2ranks", [algorithms.halving_doubling(2)])
    names = [program.name for program in four]
    job = run_worker("programs", 4, layout, "allreduce", *names, env={"HOROCACHE_PROGRAMS": str(tmp_path)})
    assert job.code == 0, job.report()
    once = len(names) * 6 * 3  # the first and the last rank run each once more, in a set of their own
    assert sorted(int(line) for line in job.lines("ran ")) == [once, once, 2 * once, 2 * once], job.report()


def test_a_rank_that_is_killed_in_a_program_ends_the_job(tmp_path):
    save(tmp_path / "programs", [algorithms.all_pairs(3)])
    env = {"HOROCACHE_PROGRAMS": str(tmp_path / "programs"), "HOROCACHE_SELECT": "allreduce=program/all_pairs"}
    job = run_worker("victim", 3, "001", env=env, deadline_s=60)
    assert job.code != 0, job.report()
    for line in job.lines("lost "):  # mpiexec may end a rank before it prints this
        assert "rank 2" in line or "host" in line, job.report()
