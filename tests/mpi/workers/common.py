"""Shared code of the workers: simulated hosts, and calls that must raise an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def launched_rank() -> int:
    """The rank that mpiexec gave this process."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])


def pretend_hosts(layout: str) -> None:
    """Simulate hosts. ``"0011"``: ranks 0 and 1 are on one host, 2 and 3 on another. Empty: all are on this host."""
    if layout:
        os.environ["HOROCACHE_HOST_ID"] = f"host {layout[launched_rank()]}"


def expect_error(error: type[Exception], words: str, call: Callable[[], Any]) -> None:
    """Check that ``call`` raises ``error`` with ``words`` in its text."""
    try:
        got = call()
    except error as raised:
        assert words in str(raised), f"{raised} does not say {words!r}"
    else:
        raise AssertionError(f"no error with {words!r}, but {got!r}")
