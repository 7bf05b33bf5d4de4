"""The contestants as one rank sees them: horocache, torch.distributed over gloo, and MPI through mpi4py."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.network import name_interface
from benchmarks.page import Page

ALL = frozenset({"horocache", "gloo", "mpi4py"})


@dataclass
class Rank:
    """One rank of a job, and the contestants that it may use. Each contestant is started when it is first used.

    Role: owned by the rank's main thread; ``close`` ends the started contestants.
    """

    rank: int
    size: int
    page: Page
    directory: Path
    impls: frozenset[str]
    mpi: bool
    job_id: str
    _started: set[str] = field(default_factory=set)

    def has(self, impl: str) -> bool:
        """True if ``impl`` takes part."""
        return impl in self.impls

    def horocache(self, **knobs: Any) -> Any:
        """Return ``horocache.torch``, initialised; starts it anew if knobs are given or it was shut down."""
        import horocache.torch as hvd
        import torch

        torch.set_num_threads(1)
        if knobs and hvd.is_initialized():
            hvd.shutdown()
        if not hvd.is_initialized():
            hvd.init(**self.identity(), **knobs)
            self._started.add("horocache")
        return hvd

    def horocache_as_launched(self, **knobs: Any) -> Any:
        """Return ``horocache``, started anew as the launcher says; under mpiexec with the MPI that mpi4py uses."""
        import horocache as hc

        if hc.is_initialized():
            hc.shutdown()
        hc.init(**knobs)
        self._started.add("horocache")
        return hc

    def identity(self) -> dict[str, Any]:
        """Return the arguments of ``init`` that identify this rank if mpiexec started it; empty under horocacherun."""
        if not self.mpi:
            return {}
        return {
            "rank": self.rank,
            "size": self.size,
            "local_rank": self.rank,
            "local_size": self.size,
            "cross_rank": 0,
            "cross_size": 1,
            "job_id": self.job_id,
            "rendezvous_dir": str(self.directory),
        }

    def gloo(self) -> Any:
        """Return ``torch.distributed`` with its default group over gloo."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if not dist.is_initialized():
            dist.init_process_group(
                "gloo",
                init_method=f"file://{self.directory / 'gloo-store'}",
                rank=self.rank,
                world_size=self.size,
                timeout=datetime.timedelta(seconds=60),
            )
            self._started.add("gloo")
        return dist

    def close(self) -> None:
        """End the contestants, together on all ranks."""
        self.page.barrier()
        if "horocache" in self._started:
            import horocache as hc

            hc.shutdown()
        if "gloo" in self._started:
            import torch.distributed as dist

            dist.destroy_process_group()


Blocking = Callable[[Any], None]
Many = Callable[[Sequence[Any]], None]


def blocking(rank: Rank, name: str) -> dict[str, Blocking]:
    """Return, for each contestant, a function that sums one torch tensor over the ranks in place and waits.

    Args:
        rank: determines the contestants.
        name: of the tensor, for contestants that need one.
    """
    found: dict[str, Blocking] = {}
    if rank.has("horocache"):
        hvd = rank.horocache()
        found["horocache"] = lambda tensor: hvd.allreduce_(tensor, name=name, op=hvd.Sum)
    if rank.has("gloo"):
        dist = rank.gloo()
        found["gloo"] = dist.all_reduce
    if rank.has("mpi4py"):
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        found["mpi4py"] = lambda tensor: world.Allreduce(MPI.IN_PLACE, tensor.numpy())
    return found


def each_async(rank: Rank, names: Sequence[str]) -> dict[str, Many]:
    """Return, for each contestant, a function that sums many tensors in place, each by itself: submits all, then waits.

    MPI's users have no usual form of submitting all and then waiting, so MPI makes one blocking call per tensor.
    """
    found: dict[str, Many] = {}
    if rank.has("horocache"):
        hvd = rank.horocache()

        def horocache(tensors: Sequence[Any]) -> None:
            start, op = hvd.allreduce_async_, hvd.Sum
            handles = [start(tensor, name=name, op=op) for tensor, name in zip(tensors, names, strict=True)]
            for handle in handles:
                hvd.synchronize(handle)

        found["horocache"] = horocache
    if rank.has("gloo"):
        dist = rank.gloo()

        def gloo(tensors: Sequence[Any]) -> None:
            works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            for work in works:
                work.wait()

        found["gloo"] = gloo
    if rank.has("mpi4py"):
        found["mpi4py"] = _mpi_each()
    return found


def _mpi_each() -> Many:
    from mpi4py import MPI

    world, in_place = MPI.COMM_WORLD, MPI.IN_PLACE

    def mpi(tensors: Sequence[Any]) -> None:
        for tensor in tensors:
            world.Allreduce(in_place, tensor.numpy())

    return mpi


def in_buckets(rank: Rank, bucket_bytes: int) -> Many:
    """Return gloo as DistributedDataParallel uses it: flatten buckets, reduce them asynchronously, unflatten them."""
    import torch._utils as utils
    from torch import Tensor

    dist = rank.gloo()

    def gloo(tensors: Sequence[Any]) -> None:
        running = []
        for bucket in buckets(tensors, bucket_bytes):
            flat: Tensor = utils._flatten_dense_tensors(bucket)  # type: ignore[no-untyped-call]
            running.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        for bucket, flat, work in running:
            work.wait()
            parts = utils._unflatten_dense_tensors(flat, bucket)  # type: ignore[no-untyped-call]
            for tensor, reduced in zip(bucket, parts, strict=True):
                tensor.copy_(reduced)

    return gloo


def buckets(tensors: Sequence[Any], bucket_bytes: int) -> list[list[Any]]:
    """Divide the tensors into buckets of consecutive tensors; a bucket is full at ``bucket_bytes`` or more."""
    result: list[list[Any]] = []
    room = 0
    for tensor in tensors:
        if room <= 0:
            result.append([])
            room = bucket_bytes
        result[-1].append(tensor)
        room -= tensor.numel() * tensor.element_size()
    return result


def mixed(rank: Rank, **knobs: Any) -> Any:
    """Start horocache anew with gloo beside its own backends; return ``horocache.mcr_dl`` with all backends of the job.

    Args:
        rank: this rank.
        knobs: of ``horocache.init``.
    """
    import horocache.mcr_dl as mcr_dl
    from horocache.user_backends import register_backend, registered_backends

    name_interface()
    mcr_dl.finalize()
    if "gloo" not in registered_backends():
        import torch

        torch.set_num_threads(1)
        register_backend("gloo")
    rank.horocache_as_launched(**knobs)
    mcr_dl.init("auto")
    return mcr_dl
