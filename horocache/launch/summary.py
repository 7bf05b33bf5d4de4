"""The messages of horocacherun at the end of a failed job.

Note [Who is to blame]
The order in which ranks end says little: other ranks see an error at once, while the interpreter of the rank that
raised it still waits for threads and exit handlers. So each rank notes whether another rank is the reason (cause.py).
The first failed rank without such a note is to blame. A rank that aborted the job failed at the time of the abort,
however late it ended, and even if horocacherun had to end it.
"""

import re
from collections.abc import Sequence

from horocache.launch.rank import RankProcess, host_name, signal_name

# The last line of a traceback that reports another rank's end. Searched for in the stderr of ranks without a note.
_CONSEQUENCE = re.compile(r"(^|\.)(PeerLost|ShutDown|Aborted)Error: ")


def first_cause(failed: Sequence[RankProcess]) -> RankProcess:
    """Return the rank to blame. ``failed`` is in the order of the ends."""
    return min(failed, key=lambda rank: (_is_victim(rank), _follows(rank), _failed_at(rank)))


def exit_code_of(failed: Sequence[RankProcess]) -> int:
    """Return the exit code of the job. ``failed`` is in the order of the ends."""
    first = first_cause(failed)
    # The rank failed before horocacherun ended it: 1 is the code of an interpreter that ends after an exception.
    return 1 if first.stopped_by_launcher and first.cause is not None else first.exit_code


def failure_summary(failed: Sequence[RankProcess], size: int) -> list[str]:
    """Describe the first failure in full and each other one in one line. ``failed`` is in the order of the ends."""
    first = first_cause(failed)
    began = _failed_at(first) - first.started
    lines = [
        f"horocacherun: rank {first.rank} of {size} failed first: it {_how_it_failed(first)} "
        f"[host {host_name()}, pid {first.pid}, {began:.1f} s after its start]"
    ]
    if first.cause is not None and first.cause.follows:
        lines.append(f"horocacherun: another rank was the reason: {_one_line(first.cause.why)}")
    if first.hint() and not first.stopped_by_launcher:
        lines.append(f"horocacherun: {first.hint()}")
    lines += _last_lines(first)
    # If the first failure followed another rank, the cause may be a rank that horocacherun ended and that has not noted
    # another cause: its output may explain it.
    suspects = [rank for rank in failed if rank.stopped_by_launcher and not _follows(rank)] if _follows(first) else []
    for rank in failed:
        if rank is not first:
            lines.append(_other(rank, first))
            lines += _last_lines(rank) if rank in suspects else []
    return lines


def _follows(rank: RankProcess) -> bool:
    if rank.cause is not None:
        return rank.cause.follows
    return any(map(_CONSEQUENCE.search, rank.err.tail.lines()))


def _is_victim(rank: RankProcess) -> bool:
    """True if the rank ended only because horocacherun ended it."""
    return rank.stopped_by_launcher and rank.cause is None


def _failed_at(rank: RankProcess) -> float:
    if rank.cause is not None and not rank.cause.follows:
        return rank.cause.at
    return rank.ended or rank.started


def _how_it_failed(rank: RankProcess) -> str:
    if rank.stopped_by_launcher and rank.cause is not None and not rank.cause.follows:
        return f"aborted ({_one_line(rank.cause.why)}), and was still running when horocacherun ended it"
    return rank.how_it_ended()


def _last_lines(rank: RankProcess) -> list[str]:
    tail = rank.err.tail.lines()
    if not tail:
        return [f"horocacherun: rank {rank.rank} wrote nothing to stderr"]
    return [f"horocacherun: last lines of rank {rank.rank}'s stderr:", *("    " + line for line in tail)]


def _other(rank: RankProcess, first: RankProcess) -> str:
    later = (rank.ended or 0.0) - _failed_at(first)
    when = f"{abs(later):.1f} s {'after' if later >= 0 else 'before'} that"
    if rank.stopped_by_launcher and rank.killed:
        return (
            f"horocacherun: rank {rank.rank} (pid {rank.pid}) was still running and was ended by horocacherun with "
            f"{signal_name(-(rank.status or 0))} {when}"
        )
    said = rank.cause.why if rank.cause is not None else next(iter(rank.err.tail.lines()[-1:]), "")
    return f"horocacherun: rank {rank.rank} (pid {rank.pid}) {rank.how_it_ended()} {when}" + (
        f": {_one_line(said)}" if said else ""
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
