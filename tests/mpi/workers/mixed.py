"""Programs of mcr_dl on MPI and shared memory together; the first argument names one."""

from __future__ import annotations

import random
import sys

import numpy as np
from common import expect_error, pretend_hosts

import horocache as hc
import horocache.mcr_dl as mcr_dl


def orders() -> None:
    """Rank 0 posts A(mpi), B(shm) while rank 1 posts B, A: 1000 rounds in random orders."""
    mcr_dl.init(["mpi", "shm"])
    rank, size = mcr_dl.get_rank(), mcr_dl.get_size()
    own = random.Random(rank)
    total = float(sum(range(size)))
    for step in range(1000):
        tensors = {"mpi": np.full(3, float(rank)), "shm": np.full(3, float(rank + step))}
        ways = own.sample(sorted(tensors), 2)
        handles = [mcr_dl.all_reduce(way, tensors[way], async_op=True) for way in ways]
        own.shuffle(handles)
        for handle in handles:
            handle.wait(60)
        assert tensors["mpi"][0] == total and tensors["shm"][0] == total + size * step, step
    print(f"orders {rank}", flush=True)


def control() -> None:
    """The same with plain MPI: two communicators, and ranks that begin with different ones."""
    from mpi4py import MPI

    first, second, third = (MPI.COMM_WORLD.Dup() for _ in range(3))
    rank = MPI.COMM_WORLD.rank
    comms = [first, second] if rank == 0 else [second, first]
    sums = [np.zeros(3) for _ in comms]
    requests = [comms[0].Iallreduce(np.ones(3), sums[0])]
    stuck = not any(requests[0].Test() for _ in range(10_000))  # a blocking call would not come back
    third.Barrier()  # both ranks have seen that before one of them begins its other operation
    requests.append(comms[1].Iallreduce(np.ones(3), sums[1]))
    MPI.Request.Waitall(requests)
    print(f"control {rank} {stuck}", flush=True)


def backends() -> None:
    """M1 and M20: order, sizes, groups that overlap, each with another backend."""
    mcr_dl.init(["mpi", "shm"])
    assert mcr_dl.get_backends() == ["mpi", "shm"]
    rank, size = mcr_dl.get_rank("mpi"), mcr_dl.get_size("shm")
    assert (rank, size) == (mcr_dl.get_rank("shm"), mcr_dl.get_size("mpi")) == (hc.rank(), hc.size())
    mcr_dl.configure(enabled=True)
    groups = [mcr_dl.new_group([each, (each + 1) % size]) for each in range(size)]
    ways = ["mpi" if number % 2 else "shm" for number in range(size)]
    for step in range(20):
        mine = [number for number in range(size) if groups[number].rank() >= 0]
        started = []
        for number in random.Random(f"{step} {rank}").sample(mine, len(mine)):
            tensor = np.full(3, float(rank))
            started.append(
                (mcr_dl.all_reduce(ways[number], tensor, async_op=True, group=groups[number]), tensor, number)
            )
        for handle, tensor, number in started:
            handle.wait(60)
            assert tensor[0] == sum(groups[number].ranks)
    used = {(record.backend, len(record.group)) for record in mcr_dl.log_records()}
    assert used <= {("mpi", 2), ("shm", 2), ("inline", 2)} and len(used) >= 2, used
    expect_error(
        hc.InvalidArgumentError,
        f"Rank {rank} is not a member",
        lambda: mcr_dl.all_reduce("mpi", np.ones(1), group=groups[(rank + 1) % size]),
    )
    chooses(rank, size)
    print(f"backends {rank}", flush=True)


def chooses(rank: int, size: int) -> None:
    """``auto`` and lists take the first backend that can, in the order that the program gives."""
    large = np.ones(1000)
    for way, backend in (("auto", "mpi"), (["shm", "mpi"], "shm"), (["mpi", "shm"], "mpi"), ("mpi/native", "mpi")):
        mcr_dl.all_reduce(way, large)
        record = mcr_dl.log_records()[-1]
        assert (record.backend, record.chosen_by) == (backend, "call" if way == "mpi/native" else "order"), record
    assert record.algorithm == "native"
    large = np.full(1000, rank + 1.0)
    mcr_dl.all_reduce(["mpi", "shm"], large)
    assert large[0] == size * (size + 1) / 2


def hosts() -> None:
    """Two hosts: operations of all ranks go by MPI, those of a host's group through its memory."""
    mcr_dl.init(["shm", "mpi"])
    rank, size = mcr_dl.get_rank(), mcr_dl.get_size()
    here = mcr_dl.new_group(range(2)), mcr_dl.new_group(range(2, size))
    mine = here[rank // 2]
    mcr_dl.configure(enabled=True)
    tensor = np.full(1000, 1.0)
    mcr_dl.all_reduce("auto", tensor, group=mine)
    mcr_dl.all_reduce("auto", tensor)
    expect_error(hc.UnsupportedError, "cannot use backend 'shm'", lambda: mcr_dl.all_reduce("shm", tensor))
    assert tensor[0] == 2.0 * size and [record.backend for record in mcr_dl.log_records()] == ["shm", "mpi"]
    print(f"hosts {rank}", flush=True)


def missing() -> None:
    """M10: the job's MPI is hidden."""
    expect_error(hc.UnsupportedError, "no backend 'mpi'", lambda: mcr_dl.init(["mpi", "shm"]))
    mcr_dl.init()
    assert mcr_dl.get_backends() == ["shm"]
    tensor = np.ones(3)
    mcr_dl.all_reduce("shm", tensor)
    assert tensor[0] == mcr_dl.get_size()
    print(f"missing {mcr_dl.get_rank()}", flush=True)


if __name__ == "__main__":
    pretend_hosts(sys.argv[2] if len(sys.argv) > 2 else "")
    {"orders": orders, "control": control, "backends": backends, "hosts": hosts, "missing": missing}[sys.argv[1]]()
    mcr_dl.finalize()
