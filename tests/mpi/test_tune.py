"""``horocache tune`` over MPI: simulated hosts, and the backend mpi on one host."""

from __future__ import annotations

import os
import sys

from mpi_jobs import flavour, run_command

from horocache.tuning.table import load


def tune(path, *arguments):
    command = [sys.executable, "-m", "horocache.tools", "tune", "--out", str(path), "--repeat", "3", *arguments]
    return run_command(command, {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]})


def test_two_hosts_of_two_ranks_are_measured_over_mpi(tmp_path):
    path = tmp_path / "t.json"
    job = tune(path, "--ops", "allreduce,gather", "--sizes", "1K", "--layouts", "2x2")
    assert job.code == 0 and job.err == "", job.report()
    table = load(path)
    assert ("Open MPI" if flavour() == "openmpi" else "MPICH") in table.libraries["mpi"]
    for op in ("allreduce", "gather"):
        [layout] = table.layouts_of(op)
        assert (layout.ranks, layout.hosts) == (4, 2)
        assert [name.partition(" as ")[2] for name in layout.host_names] == ["host0", "host1"]
        [size] = layout.sizes
        assert sorted(one.name for one in size.candidates) == ["mpi/auto", "mpi/fold", "mpi/native", "mpi/twolevel"]
        unable = {one.name: one.reason for one in size.candidates if one.reason}
        assert set(unable) == (set() if op == "allreduce" else {"mpi/fold", "mpi/twolevel"})
        assert all("UnsupportedError" in reason and "mpi/" in reason for reason in unable.values())


def test_the_backend_mpi_is_measured_beside_shared_memory_on_one_host(tmp_path):
    path = tmp_path / "t.json"
    job = tune(path, "--ops", "broadcast", "--sizes", "64", "--worlds", "2", "--backends", "shm/auto,mpi/native")
    assert job.code == 0, job.report()
    [layout] = load(path).layouts_of("broadcast")
    assert (layout.ranks, layout.hosts) == (2, 1)
    assert {one.name for one in layout.sizes[0].candidates if one.median_us} == {"shm/auto", "mpi/native"}
