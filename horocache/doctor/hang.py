"""``horocache doctor --hang``: which ranks of a running job wait, and for whom."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil

from horocache.base.untrusted_text import printable
from horocache.base.usage import complain
from horocache.observe import flight, nccl_ras
from horocache.observe.flight_report import Some, compare, describe_operation, pending_on_some
from horocache.observe.records import Pending, Record

_Job = tuple[str, int]  # its name; for a job of one rank also the process

_LONG_NS = 1_000_000_000  # an operation that is pending for less is under way
_PAUSE_S = 1.0  # before ranks are asked again


def run(pid: int | None) -> int:
    """Explain what the ranks of a process, or of those that it started, wait for; None: of all jobs of this user here.

    Returns 1 if a rank does not answer, or lacks an operation for which others wait; else 0.
    """
    try:
        sockets = flight.ranks_of(pid) if pid is not None else {}
    except flight.NoAnswerError as error:
        complain("horocache", str(error))
        return 1
    if pid is None:
        sockets = {process: names for process, names in flight.ranks_here().items() if _is_own(process)}
    records, found, failures = _ask(sockets)
    texts = ["\n".join(explain(ranks, found[job])) for job, ranks in _jobs(records).items()]
    if not sockets:
        texts.append("no rank of horocache runs here")
    sys.stdout.write("\n\n".join(texts) + "\n" if texts else "")
    for failure in failures:
        complain("horocache", failure)
    return 1 if failures or any(found.values()) else 0


def _ask(sockets: Mapping[int, Sequence[str]]) -> tuple[list[Record], dict[_Job, Some], list[str]]:
    """Return the ranks' records, what some of them lack in each job, and why others gave none.

    Ranks of which one seems to lack an operation are asked a second time: it may be slow, and the ranks do not answer
    at the same moment.
    """
    records, failures = flight.ask_all(sockets)
    found = _lacking(records, _is_long)
    if any(found.values()):
        time.sleep(_PAUSE_S)
        waited = {(record.pid, pending.handle) for record in records for pending in record.pending}
        records, failures = flight.ask_all({pid: names for pid, names in sockets.items() if psutil.pid_exists(pid)})
        found = _lacking(records, lambda record, pending: (record.pid, pending.handle) in waited)
    return records, found, failures


def _jobs(records: Iterable[Record]) -> dict[_Job, list[Record]]:
    """Return the records by job; jobs of one rank may have equal names."""
    jobs: dict[_Job, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.rank):
        jobs.setdefault((record.job, record.pid if record.size == 1 else 0), []).append(record)
    return jobs


def _is_own(pid: int) -> bool:
    try:
        return os.geteuid() in (0, psutil.Process(pid).uids().effective)
    except psutil.Error:
        return False


def _is_long(record: Record, pending: Pending) -> bool:
    return record.now_ns - pending.since_ns >= _LONG_NS


def _lacking(records: Iterable[Record], counts: Callable[[Record, Pending], bool]) -> dict[_Job, Some]:
    return {job: pending_on_some(ranks, counts) for job, ranks in _jobs(records).items()}


def explain(records: Sequence[Record], some: Some) -> list[str]:
    """Return, as lines, what the ranks of one job wait for, and the stacks of those for whom others wait.

    Args:
        records: of the job's ranks that run here.
        some: what :func:`~horocache.observe.flight_report.pending_on_some` has found.
    """
    lines = [f"job {printable(records[0].job)}: {len(records)} of {records[0].size} ranks run here"]
    for record in records:
        oldest = min(record.pending, key=lambda pending: pending.since_ns, default=None)
        if oldest is None:
            waits = "waits for no operation"
        else:
            waits = f"{describe_operation(oldest)}, pending for {(record.now_ns - oldest.since_ns) / 1e9:.3f} s"
        lines.append(f"  rank {record.rank} (process {record.pid}): {waits}")
    lines += compare(some)
    lacking = {rank for _, ranks in some.values() for rank in ranks}
    for record in records:
        if record.rank in lacking and record.stacks:
            lines += ["", f"rank {record.rank} is here:"]
            lines += [f"  {printable(line)}" for line in record.stacks.rstrip().split("\n")]
    nccl = nccl_ras.describe_jobs(records)
    return lines + ([""] if nccl else []) + nccl
