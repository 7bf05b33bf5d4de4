"""The mpi backend: conformance, equal bits, several backends at once, and ranks on several hosts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mpi_jobs import REPOSITORY, WORKERS, arguments_of, flavour, run_command, run_worker, tried_with

from horocache.observe.trace import key_of, load_all, merge

CASES = REPOSITORY / "tests" / "conformance" / "run_cases.py"
FAKES = REPOSITORY / "build" / "dev" / "tests" / "fake_gpu"
FAKE_CUDA = FAKES / "libcuda_fake.so.1"
FAKE_NCCL = FAKES / "libnccl_fake_23007.so.2"
STANDARD = Path(sys.prefix) / "lib" / "libmpi_abi.so.1"


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_operation_conforms(ranks):
    if (flavour() == "mpich") == (ranks == 4):
        pytest.skip("tried over the other MPI, or over the standard ABI")
    job = run_command([*arguments_of(ranks), sys.executable, str(CASES), "--backend", "mpi"], deadline_s=240)
    assert job.code == 0, job.report()
    assert " checks " in job.out, job.report()


@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=tried_with("mpich")), pytest.param(3, marks=tried_with("openmpi"))]
)
def test_every_operation_on_cuda_tensors_conforms(ranks):
    command = [*arguments_of(ranks), sys.executable, str(CASES), "--backend", "mpi", "--cuda", str(FAKE_CUDA)]
    job = run_command(command, {"FAKE_GPU_DELAY_US": "20"}, deadline_s=240)
    assert job.code == 0 and " checks " in job.out, job.report()


@tried_with("mpich")
def test_operations_on_cuda_tensors_by_nccl_conform_between_hosts():
    job = run_worker("nccl", 3, "001", str(FAKE_CUDA), str(FAKE_NCCL), "conforms", env={"FAKE_GPU_DELAY_US": "20"})
    assert job.code == 0 and " checks " in job.out, job.report()


def test_cuda_tensors_are_reduced_in_two_levels_by_nccl_and_mpi():
    layout = "0011" if flavour() == "openmpi" else "010"
    job = run_worker("nccl", len(layout), layout, str(FAKE_CUDA), str(FAKE_NCCL), "levels")
    assert job.code == 0, job.report()
    leads = [layout.index(layout[rank]) == rank for rank in range(len(layout))]
    told = [f"{rank}: 190 checks, leads {leads[rank]}, 1 connection" for rank in range(len(layout))]
    assert job.lines("levels ") == told, job.report()


@tried_with("openmpi")
def test_a_host_where_nccl_is_refused_ends_the_job_on_all_hosts():
    environment = {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}  # the second host has two ranks on one GPU
    job = run_worker("nccl", 3, "011", str(FAKE_CUDA), str(FAKE_NCCL), "refused", env=environment)
    errors = job.lines("error ")
    assert len(errors) == 6 and all("NCCL cannot connect the ranks" in error for error in errors), job.report()


@tried_with("openmpi")  # MPICH's mpiexec would kill the others
@pytest.mark.parametrize("way", ["dies", "dies in levels"])
def test_a_rank_that_dies_while_others_wait_for_it_in_nccl_is_named_on_all_hosts(way):
    job = run_worker("nccl", 4, "0011", str(FAKE_CUDA), str(FAKE_NCCL), way)
    assert job.code != 0, job.report()
    lost = job.lines("lost ")
    assert len(lost) == 3 and all(f"{rank} after 1 abort: rank 3 " in lost[rank] for rank in range(3)), job.report()


@pytest.mark.skipif(not STANDARD.exists(), reason="this MPI has no library with the standard ABI")
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_operation_conforms_over_the_standard_abi(ranks):
    if flavour() == "mpich" and ranks == 2:
        pytest.skip("tried over MPICH's own ABI")
    environment = {"HOROCACHE_MPI_LIBRARY": str(STANDARD)}
    command = [*arguments_of(ranks), sys.executable, str(CASES), "--backend", "mpi"]
    job = run_command(command, environment, deadline_s=240)
    assert job.code == 0 and " checks " in job.out, job.report()


def test_operations_beyond_the_count_limit_are_split_into_several_mpi_calls():
    command = [*arguments_of(2), sys.executable, str(CASES), "--backend", "mpi"]
    chosen = ["--only", "allreduce", "--only", "alltoallv", "--only", "allgatherv", "--only", "broadcast"]
    job = run_command([*command, *chosen], {"HOROCACHE_MPI_MAX_COUNT": "1000"}, deadline_s=240)
    assert job.code == 0, job.report()


@pytest.mark.parametrize(
    "ranks", [pytest.param(3, marks=tried_with("mpich")), pytest.param(4, marks=tried_with("openmpi"))]
)
def test_shared_memory_and_deterministic_mpi_give_the_same_bits(ranks):
    digests = []
    for layout in ("", "0011"[:ranks]):
        job = run_worker("bits", ranks, *([layout] if layout else []), env={"HOROCACHE_DETERMINISTIC": "1"})
        assert job.code == 0, job.report()
        digests += job.lines("digest ")
    assert len(digests) == 2 * ranks and len(set(digests)) == 1, digests


def test_a_thousand_random_schedules_on_two_backends_are_correct():
    job = run_worker("schedules", 3, "1000", deadline_s=240)
    assert job.code == 0 and job.lines("right ") == ["1000"] * 3, job.report()


@pytest.mark.parametrize(
    "layout",
    ["0011", pytest.param("0101", marks=tried_with("openmpi")), pytest.param("0001", marks=tried_with("mpich"))],
)
def test_one_and_two_level_algorithms_agree_with_numpy(layout):
    env = {
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_HIERARCHICAL_ALLGATHER": "1",
        "HOROCACHE_HIERARCHICAL_BROADCAST": "1",
    }
    backends = ["default", "mpi/native"] if layout == "0011" else ["default"]
    job = run_worker("hosts", 4, layout, *backends, env=env, deadline_s=180)
    assert job.code == 0 and len(job.lines("right ")) == 4, job.report()


def test_hosts_with_one_two_and_three_ranks_are_not_homogeneous():
    """The host with two ranks has the mean number of ranks."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from common import pretend_hosts\n"
        "pretend_hosts('011222')\n"
        "import horocache as hc\n"
        "hc.init()\n"
        "print('homogeneous', hc.local_size(), hc.is_homogeneous(), flush=True)\n"
    )
    job = run_command([*arguments_of(6), sys.executable, "-c", program, str(WORKERS)])
    assert job.code == 0, job.report()
    assert job.lines("homogeneous ") == [f"{size} False" for size in (1, 2, 2, 3, 3, 3)], job.report()


@pytest.mark.parametrize("algorithm", ["native", "twolevel"])
def test_averages_of_narrow_floats_do_not_overflow(algorithm):
    program = [sys.executable, str(CASES), "--backend", f"mpi/{algorithm}", "--only", "narrow"]
    second = ["-n", "2", "env", "HOROCACHE_HOST_ID=b", *program]
    job = run_command([*arguments_of(2), "env", "HOROCACHE_HOST_ID=a", *program, ":", *second])
    assert job.code == 0 and "narrow" in job.out, job.report()


@pytest.mark.parametrize(
    "agreement",
    [
        pytest.param("bits", marks=tried_with("mpich")),
        pytest.param("leaders", marks=tried_with("openmpi")),
        pytest.param("coordinator", marks=tried_with("mpich")),
        pytest.param("tree", marks=tried_with("openmpi")),
    ],
)
def test_every_agreement_strategy_works_between_hosts(agreement):
    job = run_worker("hosts", 3, "011", "default", env={"HOROCACHE_AGREEMENT": agreement}, deadline_s=180)
    assert job.code == 0 and len(job.lines("right ")) == 3, job.report()


@pytest.mark.parametrize("layout", ["0011", "010"])
def test_messages_between_hosts_arrive_and_timelines_have_clock_offsets(layout, tmp_path):
    file = tmp_path / "t.json"
    job = run_worker("messages", len(layout), layout, env={"HOROCACHE_TIMELINE": str(file)})
    assert job.code == 0 and len(job.lines("right ")) == len(layout), job.report()
    for trace in load_all([file]):
        header = next(event["args"] for event in trace.events if event["name"] == "horocache")
        offset_ns, error_ns = header["clock_offset_ns"], header["clock_error_ns"]
        elsewhere = layout[trace.rank] != layout[0]
        # The hosts are simulated, so that all ranks have one clock.
        assert abs(offset_ns) <= error_ns and (error_ns > 0) == elsewhere, header


def test_the_merged_timeline_corrects_a_clock_that_is_an_hour_ahead(tmp_path):
    ahead = ["unshare", "--time", "--fork", "--monotonic", "3600"]
    if shutil.which("unshare") is None or subprocess.run([*ahead, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine, or this user, cannot make a namespace with another clock")
    worker = [sys.executable, str(WORKERS / "messages.py"), "01"]
    file = tmp_path / "t.json"
    job = run_command([*arguments_of(1), *worker, ":", "-n", "1", *ahead, *worker], {"HOROCACHE_TIMELINE": str(file)})
    assert job.code == 0 and len(job.lines("right ")) == 2, job.report()
    traces = load_all([file])
    assert [round(trace.clock_offset_us / 1e6) for trace in traces] == [0, -3600]
    error_us = sum(trace.clock_error_us for trace in traces)
    assert 0 < error_us == pytest.approx(merge(traces)["otherData"]["clock_error_us"])
    first, second = ({key: span for span in trace.spans if (key := key_of(span))} for trace in traces)
    assert len(first) > 3 and first.keys() == second.keys()
    for key, span in first.items():  # no rank ends an operation before all ranks have agreed on it
        assert span.end + error_us >= second[key].begin, (span, second[key])
        assert second[key].end + error_us >= span.begin, (span, second[key])
