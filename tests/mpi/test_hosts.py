"""Two hosts that are namespaces, each with its own network and host name."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from mpi_jobs import MPIEXEC, WORKERS, flavour, run_command

from benchmarks.network import Hosts, NoNamespacesError, two_hosts

# Seconds that a rank may take to notice a failure, on a busy machine; the link's own limit is 4.5 s.
PATIENCE_S = 30.0


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(two_hosts(tmp_path))
        except NoNamespacesError as error:
            pytest.skip(str(error))
        yield made


def test_ranks_detect_their_hosts_and_agree_across_hosts(hosts):
    program = (
        "import socket, numpy as np, horocache as hc\n"
        "hc.init()\n"
        "for _ in range(3): total = hc.allreduce(np.ones(70_000), op=hc.Sum, name='x')\n"
        "print('host', socket.gethostname()[-1], hc.rank(), hc.local_rank(), hc.cross_rank(), hc.cross_size(), "
        "total[0], flush=True)\n"
    )
    job = run_command(hosts.command(str(MPIEXEC), 2, ["-c", program]), hosts.environment)
    assert job.code == 0, job.report()
    assert job.lines("host ") == ["a 0 0 0 2 4.0", "a 1 1 0 2 4.0", "b 2 0 1 2 4.0", "b 3 1 1 2 4.0"], job.report()


@pytest.mark.parametrize("mode", ["rounds", "early", "refused"])
@pytest.mark.parametrize("way", ["messages", "rma"])
def test_one_sided_exchanges_between_networks(hosts, way, mode):
    environment = {**hosts.environment, "HOROCACHE_MOE_BETWEEN_HOSTS": way}
    command = hosts.command(str(MPIEXEC), 2, [str(WORKERS / "windows.py"), "0011", mode])
    job = run_command(command, environment)
    assert job.code == 0 and len(job.lines("right")) == 4, job.report()


def test_ranks_of_both_hosts_start_in_any_order(hosts):
    """Receives from any source would make one start in twenty hang, because MPICH posts them at two places."""
    program = (
        "import random, time, horocache as hc\n"
        "hc.init()\n"
        "generator = random.Random(hc.rank())\n"
        "for _ in range(60):\n"
        "    hc.shutdown()\n"
        "    time.sleep(generator.random() * 1e-3)\n"
        "    hc.init()\n"
        "print('host', hc.__version__, flush=True)\n"
    )
    environment = {**hosts.environment, "HOROCACHE_START_TIMEOUT": "10"}
    job = run_command(hosts.command(str(MPIEXEC), 2, ["-c", program]), environment)
    assert job.code == 0 and len(job.lines("host ")) == 4, job.report()


@pytest.mark.skipif(
    flavour() == "mpich", reason="MPICH's UCX finds that both hosts are one machine, and needs no network"
)
def test_a_cut_connection_is_an_error_on_every_rank_that_names_both_hosts(hosts, tmp_path):
    command = hosts.command(str(MPIEXEC), 2, [str(WORKERS / "cut.py"), str(tmp_path)])
    environment = {**os.environ, **hosts.environment}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        try:
            wait_for([tmp_path / f"running{rank}" for rank in range(4)])
            hosts.cut()
            reports = [tmp_path / f"rank{rank}" for rank in range(4)]
            wait_for(reports)
            for report in reports:
                text = report.read_text()
                assert "rank 0 (host " in text and "rank 2 (host " in text and "over MPI" in text, text
        finally:
            hosts.kill_all()
            job.kill()


def test_a_host_that_cannot_be_reached_is_an_error(hosts):
    hosts.addresses[1] = "10.87.0.9"
    job = run_command(
        hosts.command(str(MPIEXEC), 1, ["-c", "import horocache as hc; hc.init()"]), hosts.environment, deadline_s=60
    )
    assert job.code != 0, job.report()
    assert job.err.strip(), job.report()  # an error of mpiexec: no code of horocache runs yet


def wait_for(files: list[Path]) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not all(file.exists() for file in files):
        missing = [file.name for file in files if not file.exists()]
        assert time.monotonic() < limit, f"after {PATIENCE_S} s there is no {missing}"
        time.sleep(0.02)
