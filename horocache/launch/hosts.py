"""``-np`` and ``-H``: the number of ranks, and their hosts."""

import re
import socket
from pathlib import Path

from horocache.base.untrusted_text import read_bounded
from horocache.base.usage import UsageError

_MOST_RANKS = 1 << 20
_MOST_BYTES = 16 << 20  # bytes; the largest host file
_MOST_SAID = 200  # characters of a line that an error quotes
_SLOTS = re.compile("0*[1-9][0-9]{0,6}")


def count_ranks(np: int | None, hosts: str | None, hostfile: str | None = None) -> int:
    """Check the arguments against each other and return the number of ranks."""
    if np is not None and not 1 <= np <= _MOST_RANKS:
        raise UsageError(f"-np is {np}; it must be a number of ranks from 1 to {_MOST_RANKS}")
    if hosts is not None and hostfile is not None:
        raise UsageError("-H and --hostfile are both given; pass one of them")
    where = f"-H {hosts[:_MOST_SAID]}" if hosts is not None else f"--hostfile {hostfile}"
    hosts = _read_hosts(hostfile) if hostfile is not None else hosts
    slots = _slots(hosts) if hosts is not None else None
    if np is None:
        if slots is None:
            raise UsageError("how many ranks? Say -np N, as in: horocacherun -np 2 python train.py")
        if slots > _MOST_RANKS:
            raise UsageError(f"{where} has {slots} slots; a job has at most {_MOST_RANKS} ranks")
        return slots
    if slots is not None and np > slots:
        raise UsageError(f"-np {np} is more than the {slots} slot{'s' if slots != 1 else ''} in {where}")
    return np


def _read_hosts(hostfile: str) -> str:
    """Return the hosts of a file with lines such as ``localhost slots=4``, in the format of ``-H``."""
    try:
        lines = read_bounded(Path(hostfile), _MOST_BYTES).decode().split("\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"--hostfile {hostfile}: {getattr(error, 'strerror', None) or error}") from error
    entries = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = words[1].removeprefix("slots=") if len(words) == 2 else "1"
        if len(words) > 2 or not _SLOTS.fullmatch(slots) or "," in words[0]:
            said = line.strip()[:_MOST_SAID]
            raise UsageError(f"--hostfile {hostfile}, line {number}: expected 'HOST slots=N', not '{said}'")
        entries.append(f"{words[0]}:{slots}")
    if not entries:
        raise UsageError(f"--hostfile {hostfile} names no host")
    return ",".join(entries)


def _slots(hosts: str) -> int:
    total = 0
    for entry in hosts.split(","):
        host, colon, count = entry.strip().rpartition(":") if ":" in entry else (entry.strip(), "", "1")
        if not host or (colon and not _SLOTS.fullmatch(count)):
            raise UsageError(
                f"-H has '{entry[:_MOST_SAID]}'; expected HOST:SLOTS with SLOTS of at least 1, as in localhost:2"
            )
        if not is_this_host(host):
            raise UsageError(
                f"-H names the host '{host[:_MOST_SAID]}'; horocacherun starts ranks on this host only. Start a job on "
                "several hosts with mpiexec, as in: mpiexec -n 4 --host a:2,b:2 python train.py"
            )
        total += int(count)
    return total


def is_this_host(host: str) -> bool:
    """Return True if ``host`` names this machine; asks no name service."""
    name = socket.gethostname()
    return host.strip("[]") in {"localhost", "127.0.0.1", "::1", name, name.partition(".")[0]}
