"""torch's own backends, for devices that horocache does not serve."""

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
    """Make a Backend as ``init_process_group`` would make it.

    torch itself makes no Backend for a group if one of the group's backends, such as horocache, is a process group.

    Args:
        name: the backend's name, as the user gave it for the device.
        device: the device type.
        store: the group's store.
        rank: this process's rank in the group.
        size: the number of ranks in the group.
        ranks: the group's global ranks.
        timeout: the group's timeout.
        backend_options: the user's ``pg_options``.

    Returns:
        The backend's type, and the backend.

    Raises:
        UnsupportedError: this torch does not have the backend.
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
