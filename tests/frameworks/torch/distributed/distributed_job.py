"""Helpers for the tests of the torch.distributed backend; ranks cannot import them and receive them by value."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import tempfile

import cloudpickle
import torch.distributed as dist

from horocache.testing import run_ranks

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def enter(folder, rank=None, size=None, backend="horocache", seconds=30.0, store="store"):
    """Start torch.distributed. Rank and size that are not given come from the launcher's variables."""
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/{store}",
        timeout=datetime.timedelta(seconds=seconds),
        rank=int(os.environ["HOROCACHE_RANK"]) if rank is None else rank,
        world_size=int(os.environ["HOROCACHE_SIZE"]) if size is None else size,
    )
    return dist.get_rank(), dist.get_world_size()


def forget_the_launcher():
    """Remove the launcher's variables, as if the program had been started directly. Returns their rank and size."""
    said = int(os.environ["HOROCACHE_RANK"]), int(os.environ["HOROCACHE_SIZE"])
    for name in [name for name in os.environ if name.startswith("HOROCACHE_")]:
        del os.environ[name]
    return said


@contextlib.contextmanager
def group(folder, **options):
    """The world's process group, for the body of a ``with`` statement."""
    place = enter(folder, **options)
    try:
        yield place
    finally:
        dist.destroy_process_group()


def run_with_store(body, size, **options):
    """Run ``body(folder)`` on ranks that share a folder for torch's store."""
    with tempfile.TemporaryDirectory() as folder:
        return run_ranks(body, size, args=(folder,), **options)
