"""Jobs in unusual circumstances: behind a shell, on few cores, side by side, interrupted, short of a resource."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import WORKERS, guardians, wait_until_gone, worker_command
from processes import kill_marked, marked, shared_memory_files

OMP = {"OMP_NUM_THREADS": "1"}


def worker(script, *arguments):
    return [sys.executable, str(WORKERS / script), *arguments]


def check_done(finished, ranks):
    assert finished.code == 0, finished.report()
    for rank in range(ranks):
        reports = finished.reports_of(rank)
        assert "wrong" not in reports, finished.report()
        assert reports["done"]["rank"] == reports["done"]["local_rank"] == rank, finished.report()
        assert reports["done"]["size"] == reports["done"]["local_size"] == ranks, finished.report()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_sums_are_right(launcher, ranks):
    check_done(launcher.worker(ranks, "sums.py", "50"), ranks)


def test_eight_ranks_share_two_cores(launcher):
    check_done(launcher.worker(8, "sums.py", "300", deadline_s=90), 8)


def test_a_command_inside_a_shell_runs(launcher):
    line = " ".join(f"'{word}'" for word in worker("sums.py", "20"))
    check_done(launcher.run("-np", "2", "bash", "-c", f"true; {line}; exit $?", env=OMP), 2)


def test_a_command_behind_numactl_runs(launcher):
    numactl = shutil.which("numactl")
    if numactl is None:
        pytest.skip("numactl is not installed (Debian: apt-get install numactl)")
    if subprocess.run([numactl, "--physcpubind=0", "true"], capture_output=True, check=False).returncode:
        pytest.skip("numactl does not work on this kernel")
    check_done(launcher.run("-np", "2", numactl, "--physcpubind=0", *worker("sums.py", "20"), env=OMP), 2)


def test_two_jobs_at_once_are_separate(launcher):
    shared = launcher.scratch / "shared"
    shared.mkdir(mode=0o700)
    flags = ["--rendezvous-dir", str(shared)]
    jobs = [launcher.start(*worker_command(2, "sums.py", "100", value, flags=flags)) for value in ("1", "3")]
    for job in jobs:
        check_done(job.finish(60), 2)
    assert not list(shared.iterdir())


def test_a_rank_that_is_stopped_for_a_moment_continues(launcher):
    job = launcher.start(*worker_command(3, "sums.py", "100"), env={"PAUSE": "go"})
    pids = [int(job.wait_for_file(f"middle.{rank}")) for rank in range(3)]
    os.kill(pids[1], signal.SIGSTOP)
    (launcher.scratch / "go").touch()
    time.sleep(0.5)
    os.kill(pids[1], signal.SIGCONT)
    check_done(job.finish(60), 3)


@pytest.mark.parametrize("binding", ["native", "cffi"])
def test_control_c_ends_ranks_that_wait_in_a_collective(launcher, binding):
    command = worker_command(2, "waits.py", "interrupted", flags=["--grace", "10"])
    job = launcher.start(*command, env={"HOROCACHE_BINDING": binding})
    for rank in range(2):
        job.wait_for_file(f"ready.{rank}")
    job.process.send_signal(signal.SIGINT)
    finished = job.finish(8)  # less than the grace period: no rank had to be killed
    assert finished.code == 130, finished.report()
    assert "KeyboardInterrupt" in finished.stderr


@pytest.mark.parametrize("binding", ["native", "cffi"])
@pytest.mark.parametrize("rank", [0, 1])
def test_control_c_ends_a_rank_that_waits_for_other_ranks_in_init(launcher, rank, binding):
    identity = {
        "SIZE": 2,
        "RANK": rank,
        "LOCAL_RANK": rank,
        "LOCAL_SIZE": 2,
        "JOB_ID": f"alone.{rank}",
        "BINDING": binding,
    }
    env = {f"HOROCACHE_{name}": str(value) for name, value in identity.items()}
    # init() imports what it needs; NumPy turns a KeyboardInterrupt in the middle of that into an ImportError.
    code = """
import sys
import horocache as hc, horocache.core.cffi_runtime
sys.stdout.write("up")
sys.stdout.flush()
hc.init()
"""
    job = launcher.start("-c", code, module=None, env=env)
    assert job.process.stdout.read(2) == b"up"
    time.sleep(0.5)
    job.process.send_signal(signal.SIGINT)
    finished = job.finish(8)  # much less than the start timeout of 30 s
    assert "KeyboardInterrupt" in finished.stderr, finished.report()


def test_when_the_launcher_is_killed_ranks_in_a_collective_end(launcher):
    job = launcher.start(*worker_command(2, "waits.py", "interrupted", flags=["--grace", "0.5"]))
    for rank in range(2):
        job.wait_for_file(f"ready.{rank}")
    job.process.kill()
    wait_until_gone("ranks are", lambda: marked(job.mark), 10)


def test_the_socket_of_a_killed_job_does_not_disturb_the_next_job(launcher):
    shared = launcher.scratch / "shared"
    shared.mkdir(mode=0o700)
    fixed = {"HOROCACHE_JOB_ID": "fixed", "HOROCACHE_SIZE": "2", "HOROCACHE_RENDEZVOUS_DIR": str(shared)}

    def start_rank(rank):
        # Without the launcher, so that nothing cleans up and the job has the same name each time.
        identity = fixed | {"HOROCACHE_RANK": str(rank), "HOROCACHE_LOCAL_RANK": str(rank), "HOROCACHE_LOCAL_SIZE": "2"}
        return launcher.start(*worker("sums.py", "10")[1:], module=None, env=identity)

    killed = start_rank(0)
    limit = time.monotonic() + 20
    while not any(shared.rglob("*.sock")) and time.monotonic() < limit:
        time.sleep(0.01)
    assert any(shared.rglob("*.sock")), "rank 0 did not listen"
    kill_marked(killed.mark)
    killed.finish(10)
    ranks = [start_rank(rank) for rank in range(2)]
    for job in ranks:
        finished = job.finish(60)
        assert finished.code == 0, finished.report()
    assert not list(shared.iterdir())


def kill_everything(job):
    """SIGKILL for the launcher, its guardian and all ranks, until none of them is left."""
    pids = {job.process.pid}
    while pids:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.process.poll()  # reaps the process, which would stay as a zombie
        pids = {*marked(job.mark), *guardians(job.process.pid)}


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_left_when_all_processes_are_killed_at_any_moment(launcher, seed):
    generator = random.Random(seed)
    before = shared_memory_files()
    for _ in range(5):
        job = launcher.start(*worker_command(2, "sums.py", "100000"))
        time.sleep(generator.uniform(0.0, 0.9))
        kill_everything(job)
        assert job.finish(10).code == -signal.SIGKILL
        assert shared_memory_files() <= before
        left = sorted(launcher.tmp.iterdir())  # a folder and its lock file
        assert len(left) <= 2, f"files of earlier jobs are left: {left}"
    check_done(launcher.worker(2, "sums.py", "20"), 2)  # which leaves nothing, as the fixture checks


def test_two_jobs_that_restart_many_times_are_separate(launcher):
    shared = launcher.scratch / "shared"
    shared.mkdir(mode=0o700)
    command = worker_command(3, "lifetimes.py", "again", "25", flags=["--rendezvous-dir", str(shared)])
    for job in [launcher.start(*command) for _ in range(2)]:
        finished = job.finish(60)
        assert finished.code == 0, finished.report()
        assert all(finished.reports_of(rank)["again"]["first"] for rank in range(3)), finished.report()
    assert not list(shared.iterdir())


def open_files(pid):
    """The names that the kernel gives to the files that a process has open."""
    names = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since the listing
            names.add(link.readlink().name)
    return names


def test_a_job_opens_no_port(launcher):
    job = launcher.start(*worker_command(2, "sums.py", "20"), env={"PAUSE": "go"})
    job.wait_for_file("middle.0")
    job.wait_for_file("middle.1")
    pids = [job.process.pid, *marked(job.mark), *guardians(job.process.pid)]
    sockets = {name for pid in pids for name in open_files(pid)}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        table = Path("/proc/net", kind)
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        assert sockets.isdisjoint(f"socket:[{line.split()[9]}]" for line in lines), kind
    (launcher.scratch / "go").touch()
    check_done(job.finish(30), 2)


def test_two_processes_with_one_rank_fail_the_start(launcher):
    shared = launcher.scratch / "shared"
    shared.mkdir(mode=0o700)
    identity = {
        "HOROCACHE_JOB_ID": "fixed",
        "HOROCACHE_RENDEZVOUS_DIR": str(shared),
        "HOROCACHE_SIZE": "3",
        "HOROCACHE_LOCAL_SIZE": "3",
        "HOROCACHE_START_TIMEOUT": "20",
    }
    jobs = []
    for rank in ("0", "1", "1"):
        numbers = {"HOROCACHE_RANK": rank, "HOROCACHE_LOCAL_RANK": rank}
        jobs.append(launcher.start(*worker("sums.py", "1")[1:], module=None, env=identity | numbers))
    for job in jobs:
        finished = job.finish(15)  # less than the start timeout: the duplicate rank ends the start
        assert finished.code != 0, finished.report()
        assert "StartupError" in finished.stderr
        assert "rank 1" in finished.stderr


def test_too_little_memory_for_start_up_is_an_error_on_every_rank(launcher):
    finished = launcher.worker(2, "limits.py", "memory-at-init", flags=["--shm-bytes", str(64 << 20)], deadline_s=60)
    assert finished.code == 0, finished.report()
    for rank in range(2):
        report = finished.reports_of(rank)["init"]
        assert report["error"] in ("OutOfMemoryError", "StartupError"), finished.report()
    assert "HOROCACHE_SHM_BYTES" in finished.reports_of(1)["init"]["text"], finished.report()


def test_too_little_memory_for_a_result_fails_all_ranks_and_the_job_goes_on(launcher):
    finished = launcher.worker(2, "limits.py", "memory-later", deadline_s=60)
    assert finished.code == 0, finished.report()
    assert finished.reports_of(1)["allgather"]["error"] == "OutOfMemoryError", finished.report()
    assert str(2 * (32 << 20)) in finished.reports_of(1)["allgather"]["text"], finished.report()
    assert finished.reports_of(0)["allgather"]["error"] == "OutOfMemoryError", finished.report()
    assert "rank 1 has no memory" in finished.reports_of(0)["allgather"]["text"], finished.report()
    assert finished.reports_of(0)["after"]["error"] is None, finished.report()
    assert finished.reports_of(1)["after"]["error"] is None, finished.report()


def test_too_few_descriptors_are_an_error_that_names_the_limit(launcher):
    finished = launcher.worker(2, "limits.py", "files", deadline_s=60)
    assert finished.code == 0, finished.report()
    assert finished.reports_of(1)["init"]["error"] == "StartupError", finished.report()
    assert "ulimit -n" in finished.reports_of(1)["init"]["text"]
    assert finished.reports_of(0)["init"]["error"] == "StartupError", finished.report()


def test_too_few_descriptors_for_a_set_fail_its_addition_on_every_rank(launcher):
    finished = launcher.worker(3, "limits.py", "files-later")
    assert finished.code == 0, finished.report()
    for rank in range(3):
        reports = finished.reports_of(rank)
        assert reports["add"]["error"] == "StartupError", finished.report()
        assert "on rank 1" in reports["add"]["text"] and "ulimit -n" in reports["add"]["text"], finished.report()
        assert reports["again"]["error"] == ("InvalidArgumentError" if rank == 2 else None), finished.report()
        assert reports["after"]["error"] is None, finished.report()


@pytest.mark.parametrize("started", [0, 2])
def test_a_thread_that_cannot_be_started_is_a_loss_for_the_other_ranks(launcher, started):
    large_stacks = 'if [ "$RANK" = 1 ]; then ulimit -s 16777216; fi; exec "$@"'
    command = ["bash", "-c", large_stacks, "bash", *worker("limits.py", f"threads.{started}")]
    finished = launcher.run("-np", "2", "--region-bytes", "0", *command, env=OMP)
    assert finished.code == 0, finished.report()
    init, after = finished.reports_of(1)["init"], finished.reports_of(0)["after"]
    assert init["error"] == "StartupError" and "ulimit -u" in init["text"], finished.report()
    assert after["error"] == "PeerLostError" and "rank 1" in after["text"], finished.report()


def test_a_tiny_dev_shm_does_not_matter(launcher):
    tiny = 'mount -t tmpfs -o size=16k tmpfs /dev/shm && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", tiny, "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine, or this user, cannot make a namespace of mounts")
    check_done(launcher.run(*worker_command(3, "sums.py", "20"), prefix=prefix), 3)


def test_64_descriptors_are_enough_for_four_ranks(launcher):
    prefix = ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash"]
    check_done(launcher.run(*worker_command(4, "sums.py", "20"), prefix=prefix), 4)


def test_60_inits_and_shutdowns_keep_files_threads_and_memory_constant(launcher):
    finished = launcher.worker(3, "lifetimes.py", "again", "60", env={"PYTHONMALLOC": "malloc"}, deadline_s=100)
    assert finished.code == 0, finished.report()
    for rank in range(3):
        report = finished.reports_of(rank)["again"]
        assert report["first"] == report["last"], finished.report()
        assert report["grown_kib"] < 64 and report["mappings"] < 16, finished.report()


@pytest.mark.parametrize("ranks", [1, 2])
def test_knobs_given_to_init_are_checked(launcher, ranks):
    finished = launcher.worker(ranks, "lifetimes.py", "knobs")
    assert finished.code == 0, finished.report()
    for rank in range(ranks):
        reports = finished.reports_of(rank)
        assert reports["unknown"]["error"] == reports["bad"]["error"] == "InvalidArgumentError", finished.report()
        assert "cycle_tme" in reports["unknown"]["text"]
        assert "'cycle_time'" in reports["unknown"]["text"]
        assert "many" in reports["bad"]["text"]
        assert reports["before"]["error"] == reports["after"]["error"] == "NotInitializedError"
        assert reports["twice"]["error"] is None
        assert reports["other"]["error"] == "InvalidArgumentError"


def test_forked_children_get_errors_and_the_parent_goes_on(launcher):
    finished = launcher.worker(2, "lifetimes.py", "fork", deadline_s=60)
    assert finished.code == 0, finished.report()
    for rank in range(2):
        reports = finished.reports_of(rank)
        calls = [line for what, line in reports.items() if what.startswith("child-") and "error" in line]
        assert len(calls) == 8, finished.report()
        for line in calls:
            assert line["error"] == "ForkedProcessError" and "RuntimeError" in line["bases"], finished.report()
            assert "'spawn'" in line["text"], finished.report()
        assert reports["child-kept"]["links"] == [], finished.report()
        assert reports["child-kept"]["rank"] == [True, rank, 2], finished.report()
        assert reports["child-exit"]["code"] == 0
        assert reports["parent"]["files"] == 0, finished.report()


def test_a_program_that_a_rank_starts_cannot_be_a_rank(launcher):
    finished = launcher.worker(2, "lifetimes.py", "started", deadline_s=60)
    assert finished.code == 0, finished.report()
    for rank in range(2):
        reports = finished.reports_of(rank)
        assert reports["in-the-job"]["alone"] == "0 1", finished.report()
        assert reports["after-it"]["inner"] == f"{rank} 2", "the programs are no job\n" + finished.report()
    inner, pid = finished.reports_of(1)["in-the-job"]["inner"], finished.reports_of(1)["in-the-job"]["own"][2]
    assert inner.startswith("horocache.errors.StartupError: process "), finished.report()
    assert f"was started by process {pid}, which is rank 1 of 2" in inner and "HOROCACHE_SIZE=1" in inner, inner


@pytest.mark.parametrize("capacity", ["1024", "0"])
def test_an_idle_job_exchanges_no_messages(launcher, capacity):
    finished = launcher.worker(3, "lifetimes.py", "idle", flags=["--cache-capacity", capacity])
    assert finished.code == 0, finished.report()
    for rank in range(3):
        assert finished.reports_of(rank)["idle"]["rounds"] == 0, finished.report()
        assert finished.reports_of(rank)["idle"]["control_bytes"] == 0


def test_threads_of_one_rank_share_the_job(launcher):
    finished = launcher.worker(2, "lifetimes.py", "threads", deadline_s=60)
    assert finished.code == 0, finished.report()
    assert all(finished.reports_of(rank)["threads"]["errors"] == [] for rank in range(2)), finished.report()


def test_a_job_keeps_its_key_out_of_command_lines(launcher):
    job = launcher.start(*worker_command(2, "sums.py", "20"), env={"PAUSE": "go"})
    job.wait_for_file("middle.0")
    job.wait_for_file("middle.1")
    keys = set()
    for pid in marked(job.mark):
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        keys |= {entry.partition(b"=")[2] for entry in entries if entry.startswith(b"HOROCACHE_JOB_ID=")}
    assert len(keys) == 1
    for pid in [*marked(job.mark), *guardians(job.process.pid)]:
        assert keys.isdisjoint(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    (launcher.scratch / "go").touch()
    check_done(job.finish(30), 2)


def test_torchrun_starts_ranks(launcher, needs_torch):
    arguments = ["--nproc-per-node", "2", "--standalone", *worker("sums.py", "20")[1:]]
    finished = launcher.run(*arguments, module="torch.distributed.run", env=OMP, deadline_s=60)
    assert finished.code == 0, finished.report()
    assert finished.stdout.count('"what": "done"') == 2
    assert finished.stdout.count('"size": 2, ') == 2
    for logs in launcher.tmp.glob("torchelastic_*"):  # logs that torchrun leaves
        shutil.rmtree(logs)


def test_torch_finds_its_store_at_the_address_that_the_launcher_sets(launcher, needs_torch):
    finished = launcher.worker(2, "torch_store.py", deadline_s=90)
    assert finished.code == 0, finished.report()
    for rank in range(2):
        assert finished.reports_of(rank)["sums"] == {"what": "sums", "value": 3.0, "world": 2}


def test_ranks_of_srun_find_each_other(launcher):
    def start_rank(rank):
        slurm = {
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": "2",
            "SLURM_LOCALID": str(rank),
            "SLURM_NODEID": "0",
            "SLURM_NNODES": "1",
            "SLURM_JOB_ID": "4242",
            "SLURM_STEP_ID": "1",
            "SLURM_TASKS_PER_NODE": "2",
            "SLURM_STEP_TASKS_PER_NODE": "2",
        }
        return launcher.start(*worker("sums.py", "10")[1:], module=None, env=slurm)

    for job in [start_rank(rank) for rank in range(2)]:
        finished = job.finish(60)
        assert finished.code == 0, finished.report()
        assert '"size": 2, ' in finished.stdout


def test_a_program_without_a_launcher_is_a_job_of_one(launcher):
    finished = launcher.run(*worker("sums.py", "5")[1:], module=None)
    assert finished.code == 0, finished.report()
    assert '"size": 1, ' in finished.stdout
