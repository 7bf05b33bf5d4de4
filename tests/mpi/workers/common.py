"""What workers have in common: which host a rank pretends to be on."""

from __future__ import annotations

import os


def launched_rank() -> int:
    """The rank that mpiexec gave this process."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])


def pretend_hosts(layout: str) -> None:
    """``"0011"``: ranks 0 and 1 on one host, 2 and 3 on another; empty: leave it to the machine."""
    if layout:
        os.environ["HOROCACHE_HOST_ID"] = f"host {layout[launched_rank()]}"
