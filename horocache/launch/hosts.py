"""``-np`` and ``-H``: how many ranks, and where."""

import socket

from horocache.launch.usage import UsageError

_MOST_RANKS = 1 << 20


def count_ranks(np: int | None, hosts: str | None) -> int:
    """Check the two against each other and give the number of ranks."""
    if np is not None and not 1 <= np <= _MOST_RANKS:
        raise UsageError(f"-np is {np}; it must be a number of ranks from 1 to {_MOST_RANKS}")
    slots = _slots(hosts) if hosts is not None else None
    if np is None:
        if slots is None:
            raise UsageError("how many ranks? Say -np N, as in: horocacherun -np 2 python train.py")
        return slots
    if slots is not None and np > slots:
        raise UsageError(f"-np {np} is more than the {slots} slot{'s' if slots != 1 else ''} in -H {hosts}")
    return np


def _slots(hosts: str) -> int:
    total = 0
    for entry in hosts.split(","):
        host, colon, count = entry.strip().rpartition(":") if ":" in entry else (entry.strip(), "", "1")
        if not host or (colon and not (count.isascii() and count.isdigit() and int(count) > 0)):
            raise UsageError(f"-H has '{entry}'; expected HOST:SLOTS with SLOTS of at least 1, as in localhost:2")
        if not is_this_host(host):
            raise UsageError(
                f"-H names the host '{host}'; horocacherun starts ranks on this host only. Start a job on several "
                "hosts with mpiexec, as in: mpiexec -n 4 --host a:2,b:2 python train.py"
            )
        total += int(count)
    return total


def is_this_host(host: str) -> bool:
    """Tell whether ``host`` names this machine; no name service is asked."""
    name = socket.gethostname()
    return host.strip("[]") in {"localhost", "127.0.0.1", "::1", name, name.partition(".")[0]}
