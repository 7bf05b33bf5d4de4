"""Helpers for the tests of the torch.distributed backend; ranks cannot import them and receive them by value."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys

import cloudpickle
import torch.distributed as dist

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def enter(folder, rank=None, size=None, backend="horocache", seconds=30.0, store="store"):
    """Start torch.distributed; by default, rank and size come from the launcher's variables. Return both."""
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/{store}",
        timeout=datetime.timedelta(seconds=seconds),
        rank=int(os.environ["HOROCACHE_RANK"]) if rank is None else rank,
        world_size=int(os.environ["HOROCACHE_SIZE"]) if size is None else size,
    )
    return dist.get_rank(), dist.get_world_size()


def remove_launcher_variables():
    """Remove the launcher's variables, as if the program had been started directly; return their rank and size."""
    rank, size = int(os.environ["HOROCACHE_RANK"]), int(os.environ["HOROCACHE_SIZE"])
    for name in [name for name in os.environ if name.startswith("HOROCACHE_")]:
        del os.environ[name]
    return rank, size


@contextlib.contextmanager
def group(folder, **options):
    """The world's process group in a ``with`` statement, whose target is the rank and the size."""
    rank_and_size = enter(folder, **options)
    try:
        yield rank_and_size
    finally:
        dist.destroy_process_group()
