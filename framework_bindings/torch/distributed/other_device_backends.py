"""Backends of torch's own, for the devices that this one does not serve."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from horocache.errors import UnsupportedError
from torch._C import _distributed_c10d as c10d

_Kind = dist.ProcessGroup.BackendType


def make_backend(
    name: str,
    device: torch.device,
    store: Any,
    rank: int,
    size: int,
    ranks: Sequence[int],
    timeout: timedelta,
    backend_options: Any,
) -> tuple[Any, Any]:
    """A Backend as ``init_process_group`` would make it.

    torch makes none itself where one of the backends, such as horocache, is a whole process group.

    Args:
        name: what the user wrote for the device.
        device: its type.
        store: the group's.
        rank: in the group.
        size: of the group.
        ranks: global ranks.
        timeout: the group's.
        backend_options: what the user gave as ``pg_options``.

    Returns:
        Its kind, and the backend.

    Raises:
        UnsupportedError: this torch does not have it.
    """
    place = c10d.PrefixStore(f"{device.type}/", store), rank, size
    if name == "gloo" and dist.is_gloo_available():
        return _Kind.GLOO, dist.ProcessGroupGloo(*place, timeout=timeout)
    if name == "nccl" and dist.is_nccl_available():
        chosen = backend_options if backend_options is not None else dist.ProcessGroupNCCL.Options()
        chosen._timeout = timeout
        return _Kind.NCCL, dist.ProcessGroupNCCL(*place, chosen)
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is None:
        raise UnsupportedError(f'this torch has no backend "{name}" for {device.type} tensors beside horocache.')
    if not plugin.extended_api:
        return _Kind.CUSTOM, plugin.creator_fn(*place, timeout)
    given = c10d._DistributedBackendOptions()
    given.store, given.group_rank, given.group_size = place
    given.timeout = timeout
    given.group_id = device.type
    given.global_ranks_in_group = list(ranks)
    return _Kind.CUSTOM, plugin.creator_fn(given, backend_options)
