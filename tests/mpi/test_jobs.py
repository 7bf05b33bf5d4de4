"""Jobs that mpiexec starts: the start, the ranks of the job, the errors of a failed start, and the end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mpi_jobs import WORKERS, arguments_of, flavour, run_command, run_worker, tried_with

NO_RANK = -1


def test_a_communicator_or_a_list_of_ranks_or_mpiexec_defines_the_job():
    job = run_worker("jobs", 4, "world", "split", "ranks", "disagree", "sets", "parts", "twice", "finalized")
    assert job.code == 0, job.report()
    for case in ("world", "split", "ranks", "disagree", "sets", "parts", "twice", "finalized"):
        assert len(job.lines(f"done {case}")) == 4, job.report()


def test_the_cffi_binding_joins_the_job_of_mpiexec_without_mpi4py():
    program = (
        "import horocache as hc, numpy as np\n"
        "hc.init(binding='cffi')\n"
        "assert hc.mpi_enabled() and hc.allreduce(np.ones(2), op=hc.Sum, backend='mpi')[0] == hc.size() == 2\n"
        "print('right', flush=True)"
    )
    job = run_command([*arguments_of(2), sys.executable, "-c", program])
    assert job.code == 0 and len(job.lines("right")) == 2, job.report()


def test_mpiexec_inside_a_rank_of_horocacherun_starts_a_separate_job():
    inner = (
        "import horocache as hc, numpy as np\n"
        "hc.init()\n"
        "print('inner', hc.size(), hc.allreduce(np.ones(1), op=hc.Sum)[0], flush=True)"
    )
    outer = (
        "import subprocess, horocache as hc\n"
        "hc.init()\n"
        f"if hc.rank() == 0: subprocess.run({[*arguments_of(3), sys.executable, '-c', inner]!r}, check=True)\n"
        "hc.barrier()\n"
        "print('outer', hc.size(), flush=True)"
    )
    launch = [sys.executable, "-m", "horocache.launch", "-np", "2", "--no-prefix"]
    job = run_command([*launch, sys.executable, "-c", outer])
    assert job.code == 0, job.report()
    assert job.lines("inner ") == ["3 3.0"] * 3 and job.lines("outer ") == ["2"] * 2, job.report()


@tried_with("openmpi")
def test_the_demo_trains_on_two_ranks():
    command = [*arguments_of(2), sys.executable, "docs/examples/torch_digits.py", "--epochs", "2"]
    job = run_command(command, deadline_s=180)
    assert job.code == 0, job.report()
    assert "accuracy" in job.out, job.report()


def test_a_thread_level_that_is_too_low_is_an_error_that_names_the_library():
    job = run_worker("refused", 2, "serialized", env={"HOROCACHE_MPI": "on"})
    lines = job.lines("refused ")
    assert len(lines) == 2, job.report()
    assert "UnsupportedError" in lines[0] and "'serialized'" in lines[0] and "libmpi" in lines[0], lines
    allowed = run_worker("refused", 2, "serialized", env={"HOROVOD_MPI_THREADS_DISABLE": "1"})
    assert allowed.lines("started ") == ["0 of 2", "1 of 2"], allowed.report()


def test_ranks_of_one_host_start_without_an_mpi_that_cannot_be_used():
    environment = {"HOROCACHE_JOB_ID": "x"} if flavour() == "mpich" else {}
    job = run_worker("refused", 2, "serialized", env=environment)
    assert job.lines("started ") == ["0 of 2", "1 of 2"], job.report()
    assert (job.out + job.err).count("share memory without MPI") == 1, job.report()


def test_an_mpi_that_the_program_finalises_too_early_is_an_error():
    job = run_worker("jobs", 2, "finalized_early")
    assert job.lines("done ") == ["finalized_early"] * 2, job.report()


def test_a_library_of_another_mpi_than_the_launchers_is_an_error(tmp_path):
    other = [Path(sys.prefix).parent / f"mpi-{name}" for name in ("openmpi", "mpich") if name != flavour()]
    libraries = [path for folder in other for path in sorted((folder / "lib").glob("libmpi.so.*"))]
    if not libraries:
        pytest.skip("there is no environment with another MPI beside this one")
    job = run_worker("refused", 2, env={"HOROCACHE_MPI_LIBRARY": str(libraries[0])}, deadline_s=60)
    lines = job.lines("refused ")
    # Under MPICH's launcher, Open MPI's library would be a job of one rank; under Open MPI's launcher, MPICH's library
    # would fail in MPI_Init.
    words = "does not belong to the launcher" if flavour() == "mpich" else "started by the mpiexec of Open MPI"
    assert lines and words in lines[0] and str(libraries[0]) in lines[0], job.report()


def test_an_mpi_world_of_one_process_contradicts_a_launcher_with_more_ranks():
    program = (
        "import os, sys\n"
        "from mpi4py import MPI\n"
        "import horocache as hc\n"
        "for name, number, comm in (('PALS_RANKID', '1', None), ('SLURM_PROCID', '1', MPI.COMM_WORLD), "
        "('ALPS_APP_PE', '0', None)):\n"
        "    more = {name: number} | ({'SLURM_NTASKS': '2', 'SLURM_STEP_ID': '0'} if comm else {})\n"
        "    os.environ.update(more)\n"
        "    try: hc.init(comm=comm); print('alone', hc.size(), flush=True); hc.shutdown()\n"
        "    except hc.StartupError as error: print('refused', error, flush=True)\n"
        "    for each in more: del os.environ[each]\n"
    )
    job = run_command([sys.executable, "-c", program])
    lines = job.lines("refused ")
    assert len(lines) == 2 and job.lines("alone ") == ["1"], job.report()
    assert "number 1 (PALS_RANKID), but" in lines[0] and "rank 1 of 2 (SLURM_PROCID and" in lines[1], job.report()
    assert all("libmpi" in line and "it is rank 0 of 1: the library does not belong" in line for line in lines), lines
    assert (job.out + job.err).count("ALPS_APP_PE is 0, and no variable has") == 1, job.report()


def test_under_horocacherun_mpi_is_off_and_a_request_for_mpi_is_an_error():
    launcher = [sys.executable, "-m", "horocache.launch", "-np", "2"]
    plain = run_command([*launcher, sys.executable, str(WORKERS / "refused.py")])
    assert plain.code == 0 and "started 0 of 2" in plain.out, plain.report()
    asked = run_command([*launcher, sys.executable, str(WORKERS / "refused.py")], {"HOROCACHE_MPI": "on"})
    assert "it is rank 0 of 1" in asked.out + asked.err, asked.report()
    flag = run_command([*launcher, "--mpi", sys.executable, str(WORKERS / "refused.py")])
    assert flag.code == 0 and "started 1 of 2" in flag.out and "--mpi has no effect" in flag.err, flag.report()


def test_a_rank_that_does_not_call_init_is_named_after_the_time_limit():
    program = (
        "import sys; from mpi4py import MPI; import horocache as hc\n"
        "if MPI.COMM_WORLD.rank == 1: MPI.COMM_WORLD.recv(source=0)\n"
        "else:\n"
        "  try: hc.init(start_timeout=2, comm=MPI.COMM_WORLD)\n"
        "  except hc.StartupError as error: print('refused', error, flush=True)\n"
        "  [MPI.COMM_WORLD.send(0, 1) for _ in [0] if MPI.COMM_WORLD.rank == 0]\n"
    )
    job = run_command([*arguments_of(2), sys.executable, "-c", program], deadline_s=60)
    assert "refused rank 1 of 2 did not call init() within 5 s after rank 0 did" in job.out, job.report()


def test_ranks_that_wait_in_mpi_learn_that_another_rank_cannot_start():
    """The stack of rank 1's next thread would exceed all memory."""
    program = (
        "import ctypes, mpi4py; mpi4py.rc.finalize = False\n"
        "from mpi4py import MPI; import horocache as hc\n"
        "libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)\n"
        "if MPI.COMM_WORLD.rank == 1:\n"
        "  libc.pthread_attr_init(attributes)\n"
        "  libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 50))\n"
        "  assert libc.pthread_setattr_default_np(attributes) == 0\n"
        "try: hc.init(comm=MPI.COMM_WORLD)\n"
        "except hc.HorocacheError as error: print('refused', type(error).__name__, error, flush=True)\n"
        "MPI.COMM_WORLD.Barrier()\n"  # otherwise mpiexec ends the others before they have printed their error
    )
    job = run_command([*arguments_of(3), sys.executable, "-c", program], deadline_s=25)  # less than the start timeout
    first, second, third = job.lines("refused ")
    assert first == second and first.startswith("PeerLostError rank 1 (pid "), job.report()
    assert ") did not start: cannot start a thread: " in first, job.report()
    assert third.startswith("StartupError cannot start a thread: "), job.report()


@pytest.mark.skipif(flavour() == "mpich", reason="its mpiexec always ends the other ranks")
@pytest.mark.parametrize(
    ("how", "layout", "victim", "late"),
    [
        ("dies", "0000", 0, NO_RANK),
        ("cannot start", "0000", 0, NO_RANK),
        ("cannot start", "0011", 0, NO_RANK),
        ("dies", "0011", 0, 3),  # not all ranks of the other host are connected yet
        ("dies", "0011", 2, NO_RANK),
    ],
)
def test_a_rank_that_fails_in_init_is_named_at_once_by_all_others(how, layout, victim, late):
    worker = [str(WORKERS / "fails_in_init.py"), how, layout, str(victim), str(late)]
    command = [*arguments_of(4, "--enable-recovery"), sys.executable, *worker]
    job = run_command(command, deadline_s=25)  # less than the start timeout
    named = [line for line in job.lines("refused ") if f"rank {victim} " in line]
    assert len(named) == 3 and "terminate" not in job.err, job.report()


def test_a_process_that_cannot_start_threads_ends_without_an_error():
    job = run_worker("fails_in_init", 2, "ends", "", "0", str(NO_RANK), deadline_s=25)
    assert job.code == 0 and not job.err, job.report()


def test_different_settings_are_a_table_on_every_rank():
    program = (
        "import os; from mpi4py import MPI; import horocache as hc\n"
        "try: hc.init(cache_capacity=100 + MPI.COMM_WORLD.rank)\n"
        "except hc.VersionSkewError as error: print('refused', ' '.join(str(error).split()), flush=True)\n"
    )
    job = run_command([*arguments_of(2), sys.executable, "-c", program])
    lines = job.lines("refused ")
    assert len(lines) == 2 and all("cache_capacity: '100' on rank 0, '101' on rank 1" in line for line in lines), (
        job.report()
    )


@pytest.mark.parametrize("layout", ["000", "001"], ids=["one host", "two hosts"])
def test_a_killed_rank_ends_the_job_and_leaves_nothing_behind(layout):
    job = run_worker("victim", 3, layout, deadline_s=60)
    assert job.code != 0, job.report()
    for line in job.lines("lost "):  # mpiexec may end a rank before it prints this
        assert "rank 2" in line or "host" in line, job.report()


@pytest.mark.parametrize("layout", ["000", "001"], ids=["one host", "two hosts"])
@pytest.mark.parametrize("algorithm", ["fold", "twolevel"])
def test_a_rank_that_drops_an_operation_halfway_ends_the_job(tmp_path, layout, algorithm):
    faults = {"HOROCACHE_FAULT": "data:2:20=drop", "HOROCACHE_SELECT": f"allreduce=mpi/{algorithm}"}
    job = run_worker("gives_up", 3, str(tmp_path), layout, env=faults, deadline_s=60)
    assert job.code != 0, job.report()
    for rank in range(3):
        seen = (tmp_path / f"rank{rank}").read_text()
        assert ("rank 2" in seen and "gave up" in seen) or (rank == 2 and "injected" in seen), f"rank {rank}: {seen}"


@pytest.mark.skipif(flavour() == "mpich", reason="its mpiexec always ends the other ranks")
@pytest.mark.parametrize("victim", [0, 2])
def test_the_death_of_any_rank_reaches_every_host(tmp_path, victim):
    run_command(stopped(tmp_path, "dies", victim), deadline_s=60)
    for rank in set(range(4)) - {victim}:
        seen = (tmp_path / f"rank{rank}").read_text()
        named = f": rank {victim} (pid " in seen and "killed by signal 9" in seen
        assert seen.startswith("PeerLostError: ") and named, f"rank {rank}: {seen}"


@pytest.mark.skipif(flavour() == "mpich", reason="its mpiexec always ends the other ranks")
@pytest.mark.parametrize("way", ["messages", "rma"])
def test_the_death_of_a_rank_in_an_exchange_reaches_every_host(tmp_path, way):
    run_command([*stopped(tmp_path, "dies", 2), "layer"], {"HOROCACHE_MOE_BETWEEN_HOSTS": way}, deadline_s=60)
    for rank in (0, 1, 3):
        seen = (tmp_path / f"rank{rank}").read_text()
        assert seen.startswith("PeerLostError: ") and "rank 2 was lost" in seen, f"rank {rank}: {seen}"


@tried_with("openmpi")
def test_the_lowest_rank_of_a_host_may_stop_for_longer_than_the_link_timeout(tmp_path):
    job = run_command(stopped(tmp_path, "goes on", 0), deadline_s=90)
    seen = [(tmp_path / f"rank{rank}").read_text() for rank in range(4)]
    assert job.code == 0 and seen == ["right"] * 4, job.report()


def test_a_rank_that_stays_stopped_is_named_on_every_rank_of_every_host(tmp_path):
    victim = 3 if flavour() == "openmpi" else 0
    job = run_command(stopped(tmp_path, "stays", victim), deadline_s=60)
    for rank in set(range(4)) - {victim}:
        seen = (tmp_path / f"rank{rank}").read_text()
        named = f": rank {victim} has not answered round" in seen
        assert seen.startswith("StallError: ") and named, f"rank {rank}: {seen}"
    warnings = [line for line in job.err.splitlines() if "not answered round" in line and "WARNING" in line]
    assert warnings and all(f"WARNING: rank {victim} has not answered" in line for line in warnings), job.report()


def stopped(folder: Path, case: str, victim: int) -> list[str]:
    """A job of two ranks on each of two hosts; Open MPI's mpiexec must not end the others when one dies."""
    alone = ["--enable-recovery"] if flavour() == "openmpi" else []
    worker = [sys.executable, str(WORKERS / "stopped.py"), str(folder), "0011", case, str(victim)]
    return [*arguments_of(4, *alone), *worker]


def test_ranks_that_leave_early_wait_once_and_not_once_per_process_set():
    """Rank 0 leaves after the others. One second of waiting for each of their links would add up to ten."""
    job = run_worker("leaves_early", 4, "0011", deadline_s=60)
    waits = [float(line) for line in job.lines("left after ")]
    assert job.code == 0 and len(waits) == 3 and max(waits) < 6, job.report()


@pytest.mark.parametrize("layout", ["0011", "01"])
def test_a_job_can_shut_down_and_start_many_times(layout):
    job = run_worker("cycles", len(layout), layout, "15")
    assert job.code == 0 and len(job.lines("right")) == len(layout), job.report()
