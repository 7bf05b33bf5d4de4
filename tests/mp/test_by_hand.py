"""Ranks without a launcher: only MASTER_ADDR and MASTER_PORT name their job, and perhaps a second job."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from horocache.core import launcher_environment

JOB = """
import sys, time
import numpy as np, horocache as hc
name, delay, value = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
sys.stdout.write("up\\n")
sys.stdout.flush()
time.sleep(delay)
try:
    hc.init()
    sys.stdout.write(f"sum {hc.allreduce(np.array([value]), op=hc.Sum)[0]}\\n")
    sys.stdout.flush()
    hc.shutdown()
except hc.HorocacheError as error:
    sys.stdout.write(f"{type(error).__name__} {error}\\n")
"""


TORCH_JOB = """
import sys, time
import torch, torch.distributed as dist
from horocache.errors import HorocacheError
try:
    dist.init_process_group("horocache")
    sys.stdout.write("begun\\n")
    sys.stdout.flush()
    while True:
        dist.all_reduce(torch.ones(3))
        time.sleep(0.1)
except HorocacheError as error:
    sys.stdout.write(f"{type(error).__name__} {error}\\n")
"""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short path, because the path of a Unix socket holds 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="hcmp", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def variables(folder: Path, rank: int, **more: str) -> dict[str, str]:
    ours = ("HOROCACHE_", "HOROVOD_", "_HOROCACHE", "PMI", "OMPI_")
    base = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    job = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return base | job | {"TMPDIR": str(folder / "tmp"), "HOROCACHE_START_TIMEOUT": "30"} | more


@contextlib.contextmanager
def started(commands: Sequence[tuple[Sequence[str], dict[str, str]]]) -> Iterator[list[subprocess.Popen[str]]]:
    processes = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for command, env in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def outputs(commands: Sequence[tuple[Sequence[str], dict[str, str]]]) -> list[str]:
    with started(commands) as processes:
        return [process.communicate(timeout=90)[0].replace("up\n", "") for process in processes]


def in_a_shell(command: Sequence[str], variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Wrap a command in a shell that stays, like a terminal; the job's variables go to the command only."""
    job = [f"{name}={value}" for name, value in variables.items() if name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    rest = {name: value for name, value in variables.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    return ["/bin/sh", "-c", '"$@"; true', "sh", "env", *job, *command], rest


@pytest.mark.parametrize("late", [(1, 2), (0, 3), (2,)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_ranks_of_two_jobs_with_one_address_never_form_one_job(script, late, wrapped):
    """The ranks are A0, A1, B0 and B1; the ranks in ``late`` start 1.5 s after the others."""
    commands = []
    for place, (name, rank) in enumerate([("A", 0), ("A", 1), ("B", 0), ("B", 1)]):
        delay = "1.5" if place in late else "0"
        command = [sys.executable, str(script), name, delay, {"A": "0.1", "B": "100"}[name]]
        env = variables(script.parent, rank)
        commands.append(in_a_shell(command, env) if wrapped else (command, env))
    for text in outputs(commands):
        assert text.startswith("StartupError two processes claim rank"), text
        assert "give each job another MASTER_PORT" in text and "HOROCACHE_JOB_ID" in text
    assert not list((script.parent / "tmp").iterdir())


def test_late_ranks_of_two_equal_jobs_never_form_one_job(script):
    """A0 and B1 start at once, A1 and B0 later. Each has its own shell, so that nothing distinguishes the jobs."""
    commands = []
    for late, rank in ((False, 0), (True, 1), (True, 0), (False, 1)):
        env = variables(script.parent, rank, HOROCACHE_START_TIMEOUT="12")
        (shell, option, line, *command), rest = in_a_shell([sys.executable, str(script), "A", "0", "1"], env)
        commands.append(([shell, option, f"sleep {1.5 if late else 0}; {line}", *command], rest))
    texts = outputs(commands)
    assert all(text.startswith("StartupError") for text in texts), texts
    assert sum("two processes claim rank" in text for text in texts) >= 3, texts


def test_a_contender_thread_that_cannot_be_started_is_an_error(script):
    """Rank 0 runs the thread if the ranks have different starters. The thread's stack exceeds rank 0's memory limit."""
    commands = []
    for rank, limits in enumerate(("ulimit -s 16777216; ulimit -v 8388608;", "")):
        env = variables(script.parent, rank, OMP_NUM_THREADS="1", HOROCACHE_REGION_BYTES="0")
        (shell, option, line, *command), rest = in_a_shell([sys.executable, str(script), "A", "0", "1"], env)
        commands.append(([shell, option, limits + line, *command], rest))
    first, second = outputs(commands)
    assert first.startswith("StartupError cannot start a thread: "), first
    assert second.startswith(("StartupError rank 0", "PeerLostError")), second


def test_ranks_with_different_commands_and_shells_need_a_job_id(script):
    commands = [
        in_a_shell([sys.executable, str(script), name, "0", "1"], variables(script.parent, rank))
        for rank, name in enumerate("AB")
    ]
    for text in outputs(commands):
        assert text.startswith("StartupError the ranks of job"), text
        assert f"{script} A 0 1'" in text and f"{script} B 0 1'" in text and "HOROCACHE_JOB_ID" in text
    named = [(command, env | {"HOROCACHE_JOB_ID": "mine"}) for command, env in commands]
    assert outputs(named) == ["sum 2.0\n"] * 2


@pytest.mark.parametrize("start", ["different shells", "one starter, different arguments", "a wrapper on one rank"])
def test_ranks_by_hand_form_a_job(script, start):
    commands = [
        ([sys.executable, str(script), "A", "0.3" if rank else "0", "1"], variables(script.parent, rank))
        for rank in range(2)
    ]
    if start == "different shells":
        commands = [in_a_shell(*each) for each in commands]
    elif start == "a wrapper on one rank":
        commands[1] = ["/bin/sh", "-c", '"$@"; true', "sh", *commands[1][0]], commands[1][1]
    else:
        commands[1][0][2] = "B"
    assert outputs(commands) == ["sum 2.0\n"] * 2


def test_jobs_in_two_containers_that_share_a_folder_are_separate(script):
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("namespaces cannot be made here")
    both = '"$@" & RANK=1 "$@" & wait'
    commands = [
        (
            [*unshare, "sh", "-c", both, "sh", sys.executable, str(script), "A", "0.5", value],
            variables(script.parent, 0),
        )
        for value in ("1", "8")
    ]
    assert outputs(commands) == ["sum 2.0\nsum 2.0\n", "sum 16.0\nsum 16.0\n"]


def test_a_contender_that_ends_before_init_does_not_delay_the_job(script):
    commands = [([sys.executable, str(script), "A", "0", "1"], variables(script.parent, rank)) for rank in range(2)]
    rival = ([sys.executable, str(script), "A", "60", "1"], variables(script.parent, 0))
    with started([rival]) as [process]:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        with started(commands) as ranks:
            time.sleep(0.5)  # the ranks wait by then, at any stage of their start
            process.kill()
            assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["up\nsum 2.0\n"] * 2


def test_a_second_process_with_the_same_rank_aborts_the_running_job(script):
    long = script.with_name("long.py")
    long.write_text(
        JOB.replace("hc.allreduce(np.array([value]), op=hc.Sum)[0]", "1").replace(
            "    hc.shutdown()", "    hc.recv(np.zeros(1), 1 - hc.rank())  # which no rank sends"
        )
    )
    commands = [
        in_a_shell([sys.executable, str(long), "A", "0", str(value)], variables(script.parent, rank))
        for rank, value in ((0, 1), (1, 2))
    ]
    with started(commands) as ranks:
        for rank in ranks:
            assert rank.stdout is not None
            assert [rank.stdout.readline() for _ in range(2)] == ["up\n", "sum 1\n"]
        [late] = outputs(commands[1:])
        assert late.startswith("StartupError two processes claim rank 1 "), late
        for rank in ranks:
            text = rank.communicate(timeout=60)[0]
            assert text.startswith("AbortedError") and "two processes claim rank 1 " in text, text
    assert not list((script.parent / "tmp").iterdir())


SLURM_STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NNODES": "1",
}
PMIX = {"PMIX_RANK": "0", "PMIX_NAMESPACE": "gone", "PMIX_SERVER_URI2": "gone.1;tcp4://127.0.0.1:1"}


@pytest.mark.parametrize(
    "inherited", [{"PMI_RANK": "0", "PMI_SIZE": "1"}, SLURM_STEP | PMIX], ids=["PMI", "Slurm with PMIx"]
)
def test_variables_of_a_launcher_of_one_rank_do_not_start_mpi(script, inherited):
    env = {name: value for name, value in variables(script.parent, 0).items() if name not in ("RANK", "WORLD_SIZE")}
    program = "import horocache as hc; hc.init(); print(hc.rank(), hc.size(), hc.mpi_enabled())"
    assert outputs([([sys.executable, "-c", program], env | inherited)]) == ["0 1 False\n"]


def test_ranks_of_two_jobs_in_one_torch_store_get_an_error(tmp_path, needs_torch):
    """Ranks A0 and B1 begin a job; rank A1 starts later."""
    (tmp_path / "tmp").mkdir()
    with launcher_environment.reserve_port() as reserved:
        port = str(reserved.getsockname()[1])
    path = tmp_path / "job.py"
    path.write_text(TORCH_JOB)
    command = [sys.executable, str(path)]
    with started([(command, variables(tmp_path, rank, MASTER_PORT=port)) for rank in range(2)]) as crossed:
        assert [process.stdout.readline() for process in crossed] == ["begun\n"] * 2
        [late] = outputs([(command, variables(tmp_path, 1, MASTER_PORT=port))])
        texts = [process.communicate(timeout=60)[0] for process in crossed]
    numbers = f"two processes claim rank 1 of a job: {crossed[1].pid} and "
    assert late.startswith(f"StartupError {numbers}"), late
    assert f"127.0.0.1:{port}" in late and "another MASTER_PORT" in late, late
    assert all(text.startswith("AbortedError") and numbers in text for text in texts), texts
