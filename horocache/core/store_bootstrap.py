"""Starts a job whose ranks know each other already and can tell each other who they are.

``init()`` finds that out from what a launcher has set. A program that was started by something else, and has means of
its own by which its processes talk (as torch.distributed has a store), starts horocache through this module.
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

Share = Callable[[str], list[str]]  # tells all members a text, and gives what each of them told, in their order

_LONGEST_STALL_S = 86400.0  # of the knob
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def start_among(rank: int, size: int, share: Share, limit_s: float) -> tuple[Session, bool]:
    """Start horocache as the job of ``size`` ranks of which this process is ``rank``, or find that it runs as that.

    To be called by all of them.

    Args:
        rank: this process's number.
        size: how many there are.
        share: by which they tell each other.
        limit_s: how long an operation may wait for ranks; the longest that a rank names counts. A value of the knob
            ``stall_shutdown_time_seconds`` that the user has set comes first.

    Returns:
        The session, and whether it was started here.

    Raises:
        StartupError: some ranks run horocache already and some do not; or see :func:`horocache.init`.
        InvalidArgumentError: it runs already, but some rank is another one there.
    """
    told = [json.loads(text) for text in share(json.dumps(_describe(rank, size, limit_s)))]
    running = [each["runs"] is not None for each in told]
    if any(running):
        _check_running(told, running, size)
        return context.current(), False
    init(**_knobs(rank, size, told))
    return context.current(), True


def own_host() -> str:
    """This host, as the core tells hosts apart."""
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
    """Whether a launcher has set who this process is, and says the same.

    Not torchrun: its variables are set by hand as well, and do not always name a job.
    """
    from horocache import _core  # noqa: PLC0415

    try:
        found = _core.identity()
    except StartupError:  # the rest of some other launcher's variables
        return False
    return found["source"] not in ("none", "torchrun") and (found["rank"], found["size"]) == (rank, size)


def _check_running(told: list[dict[str, Any]], running: list[bool], size: int) -> None:
    if not all(running):
        raise StartupError(
            f"horocache runs already on rank {running.index(True)}, and not on rank {running.index(False)}; call "
            "init() on all ranks, or on none."
        )
    for rank, each in enumerate(told):
        if each["runs"] != [rank, size]:
            had, of = each["runs"]
            raise InvalidArgumentError(
                f"rank {rank} of {size} is rank {had} of {of} in the job that horocache runs already. Use the ranks of "
                "that job, or call shutdown() first."
            )


def _knobs(rank: int, size: int, told: list[dict[str, Any]]) -> dict[str, Any]:
    from horocache import _core  # noqa: PLC0415

    knobs: dict[str, Any] = {}
    if _core.parse_knobs()["stall_shutdown_time_seconds"][1] == "default":
        knobs["stall_shutdown_time_seconds"] = min(max(each["limit_s"] for each in told), _LONGEST_STALL_S)
    if all(each["launched"] for each in told):
        return knobs
    hosts = [each["host"] for each in told]
    different = list(dict.fromkeys(hosts))
    return knobs | {
        "rank": rank,
        "size": size,
        "local_rank": hosts[:rank].count(hosts[rank]),
        "local_size": hosts.count(hosts[rank]),
        "cross_rank": different.index(hosts[rank]),
        "cross_size": len(different),
        "job_id": told[0]["job"],
    }
