"""What horocacherun says at the end of a job that failed."""

import re
from collections.abc import Sequence

from horocache.launch.rank import RankProcess, host_name, signal_name

# How Python ends the traceback of a rank that saw another one's end.
_CONSEQUENCE = re.compile(r"(^|\.)(PeerLost|ShutDown|Aborted)Error: ")


def first_cause(failed: Sequence[RankProcess]) -> RankProcess:
    """Choose the rank to blame: the first, but for ranks that say themselves that they fell over another one.

    A rank that raises tells the others while it ends; they may be gone before it is.
    """
    return next((rank for rank in failed if not any(map(_CONSEQUENCE.search, rank.err.tail.lines()))), failed[0])


def failure_summary(failed: Sequence[RankProcess], size: int) -> list[str]:
    """Describe the first failure in full and every other in one line. ``failed`` is in the order of the ends."""
    first = first_cause(failed)
    began = (first.ended or first.started) - first.started
    lines = [
        f"horocacherun: rank {first.rank} of {size} failed first: it {first.how_it_ended()} "
        f"[host {host_name()}, pid {first.pid}, {began:.1f} s after its start]"
    ]
    if first.hint():
        lines.append(f"horocacherun: {first.hint()}")
    tail = first.err.tail.lines()
    if tail:
        lines.append(f"horocacherun: last lines of rank {first.rank}'s stderr:")
        lines += ["    " + line for line in tail]
    else:
        lines.append(f"horocacherun: rank {first.rank} wrote nothing to stderr")
    lines += [_other(rank, first) for rank in failed if rank is not first]
    return lines


def _other(rank: RankProcess, first: RankProcess) -> str:
    later = (rank.ended or 0.0) - (first.ended or 0.0)
    when = f"{abs(later):.1f} s {'after' if later >= 0 else 'before'} that"
    if rank.stopped_by_launcher and rank.killed:
        return (
            f"horocacherun: rank {rank.rank} (pid {rank.pid}) was still running and was ended by horocacherun with "
            f"{signal_name(-(rank.status or 0))} {when}"
        )
    tail = rank.err.tail.lines()
    said = f": {tail[-1]}" if tail else ""
    return f"horocacherun: rank {rank.rank} (pid {rank.pid}) {rank.how_it_ended()} {when}{said}"
