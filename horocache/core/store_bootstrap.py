"""Bootstraps a job whose ranks know each other already and can exchange texts.

``init()`` takes rank and size from a launcher's variables. A program that was started in another way, and whose
processes have their own means of communication (as torch.distributed has a store), starts horocache through this
module.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from horocache.core import context
from horocache.core.launcher_environment import new_job_id
from horocache.core.lifecycle import init
from horocache.core.session import Session
from horocache.errors import InvalidArgumentError, StartupError

Share = Callable[[str], list[str]]  # sends a text to all members; returns the texts of all members, in their order

_LONGEST_STALL_S = 86400.0  # maximum of the knob stall_shutdown_time_seconds
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def start_among(rank: int, size: int, share: Share, limit_s: float) -> tuple[Session, bool]:
    """Start horocache as a job of ``size`` ranks in which this process is ``rank``, unless it runs as that already.

    All ranks must call it.

    Args:
        rank: this process's rank.
        size: number of ranks.
        share: exchanges texts among the ranks.
        limit_s: seconds that an operation may wait for ranks; the longest limit of any rank counts. A value that the
            user has set for the knob ``stall_shutdown_time_seconds`` takes precedence.

    Returns:
        The session, and True if this call has started it.

    Raises:
        StartupError: horocache runs already on some ranks, but not on all; or :func:`horocache.init` failed.
        InvalidArgumentError: horocache runs already, but a rank has another rank or size there.
    """
    described = [json.loads(text) for text in share(json.dumps(_describe(rank, size, limit_s)))]
    running = [each["runs"] is not None for each in described]
    if any(running):
        _check_running(described, running, size)
        return context.current(), False
    init(**_knobs(rank, size, described))
    return context.current(), True


def own_host() -> str:
    """Return the text by which the core identifies this host."""
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    boot = _BOOT_ID.read_text() if _BOOT_ID.is_file() else ""
    return str(_core.parse_knobs()["host_id"][0]) or f"{socket.gethostname()} {boot}"


def _describe(rank: int, size: int, limit_s: float) -> dict[str, Any]:
    return {
        "runs": [context.rank(), context.size()] if context.running() is not None else None,
        "launched": _is_launched_as(rank, size),
        "host": own_host(),
        "limit_s": limit_s,
        "job": new_job_id(),
    }


def _is_launched_as(rank: int, size: int) -> bool:
    """True if a launcher's variables give this process the same rank and size.

    torchrun's variables do not count: users also set them by hand, and they do not always name a job.
    """
    from horocache import _core  # noqa: PLC0415

    try:
        found = _core.identity()
    except StartupError:  # incomplete variables of another launcher
        return False
    return found["source"] not in ("none", "torchrun") and (found["rank"], found["size"]) == (rank, size)


def _check_running(described: list[dict[str, Any]], running: list[bool], size: int) -> None:
    if not all(running):
        raise StartupError(
            f"horocache runs already on rank {running.index(True)}, and not on rank {running.index(False)}; call "
            "init() on all ranks, or on none."
        )
    for rank, each in enumerate(described):
        if each["runs"] != [rank, size]:
            had, of = each["runs"]
            raise InvalidArgumentError(
                f"rank {rank} of {size} is rank {had} of {of} in the job that horocache runs already. Use the ranks of "
                "that job, or call shutdown() first."
            )


def _knobs(rank: int, size: int, described: list[dict[str, Any]]) -> dict[str, Any]:
    from horocache import _core  # noqa: PLC0415

    knobs: dict[str, Any] = {}
    if _core.parse_knobs()["stall_shutdown_time_seconds"][1] == "default":
        knobs["stall_shutdown_time_seconds"] = min(max(each["limit_s"] for each in described), _LONGEST_STALL_S)
    if all(each["launched"] for each in described):
        return knobs
    hosts = [each["host"] for each in described]
    different = list(dict.fromkeys(hosts))
    return knobs | {
        "rank": rank,
        "size": size,
        "local_rank": hosts[:rank].count(hosts[rank]),
        "local_size": hosts.count(hosts[rank]),
        "cross_rank": different.index(hosts[rank]),
        "cross_size": len(different),
        "job_id": described[0]["job"],
    }
