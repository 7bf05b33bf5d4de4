"""mcr_dl with MPI beside shared memory: M1, M2, M7, M8, M10 and M20 by their numbers in its acceptance list."""

from __future__ import annotations

import sys

import pytest
from mpi_jobs import REPOSITORY, arguments_of, flavour, run_command, run_worker, tried_with

PROGRAMS = REPOSITORY / "tests" / "frameworks" / "mcr_dl"


def run_program(name: str, ranks: int, *arguments: str):
    return run_command([*arguments_of(ranks), sys.executable, str(PROGRAMS / name), *arguments], deadline_s=110)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_m2_every_operation_conforms_over_mpi(ranks, kind):
    if (flavour() == "mpich") == ((ranks + (kind == "torch")) % 2 == 0):
        pytest.skip("tried over the other MPI")
    job = run_program("cases.py", ranks, "mpi,shm", kind)
    assert job.code == 0, job.report()
    expected = sorted(f"{rank} {backend} {kind}" for rank in range(ranks) for backend in ("mpi", "shm"))
    assert job.lines("conforms ") == expected, job.report()


@pytest.mark.parametrize("ranks", [2, 4])
def test_m7_ranks_post_operations_of_two_backends_in_different_orders(ranks):
    if (flavour() == "mpich") == (ranks == 4):
        pytest.skip("tried over the other MPI")
    job = run_worker("mixed", ranks, "orders")
    assert job.code == 0 and job.lines("orders ") == [str(rank) for rank in range(ranks)], job.report()


def test_m7_without_a_coordinator_ranks_that_begin_with_different_operations_wait_for_each_other():
    job = run_worker("mixed", 2, "control")
    assert job.lines("control ") == ["0 True", "1 True"], job.report()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_m8_random_schedules_of_two_backends_blocking_and_not(ranks):
    if (flavour() == "mpich") == (ranks != 3):
        pytest.skip("tried over the other MPI")
    job = run_program("schedules.py", ranks, "mpi,shm", "mpi,shm,auto,mpi/native", "200")
    assert job.code == 0 and job.lines("schedules ") == [f"{rank} 200" for rank in range(ranks)], job.report()


@tried_with("openmpi")
def test_m1_m20_backends_in_order_and_groups_with_a_backend_each():
    job = run_worker("mixed", 4, "backends")
    assert job.code == 0 and job.lines("backends ") == ["0", "1", "2", "3"], job.report()


@tried_with("mpich")
def test_m20_groups_of_one_host_use_its_memory_in_a_job_of_two_hosts():
    job = run_worker("mixed", 4, "hosts", "0011")
    assert job.code == 0 and job.lines("hosts ") == ["0", "1", "2", "3"], job.report()


@tried_with("openmpi")
def test_m10_a_hidden_mpi_is_left_out():
    job = run_worker("mixed", 2, "missing", env={"HOROCACHE_MPI": "off"})
    assert job.code == 0 and job.lines("missing ") == ["0", "1"], job.report()
