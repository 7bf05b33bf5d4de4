"""The table of the log: operations by name and size, with mean latencies and bandwidths, and stragglers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from horocache.collectives.object_collectives import allgather_object
from horocache.errors import InvalidArgumentError
from horocache.mcr_dl.bandwidth import bandwidths, trimmed_mean
from horocache.mcr_dl.comms_log import LogRecord, log_of
from horocache.mcr_dl.session import current

COLUMNS = (
    "Comm. Op",
    "Message Size",
    "Count",
    "Total Latency(ms)",
    "Avg Latency(ms)",
    "tput_avg (Gbps)",
    "busbw_avg (Gbps)",
)
STRAGGLER_COLUMNS = ("Min Latency(ms)", "Straggler(ms)")


class SummaryRow(NamedTuple):
    """The operations of one name and size. Latencies are from a rank's submission to the end."""

    op: str  # the public name; with debug "NAME | [Caller Func: FUNCTION]"
    size: int  # bytes of this rank's tensor
    calls: int
    total_ms: float
    avg_ms: float  # the mean without the lowest and the highest tenth, as the next two
    tput_gbps: float
    busbw_gbps: float
    min_ms: float | None = None  # sum of the least latencies over the ranks; None without show_straggler
    straggler_ms: float | None = None  # sum of what this rank's latencies are above them: it waited for the last rank


class Summary(NamedTuple):
    """The numbers of :func:`log_summary`."""

    rows: list[SummaryRow]  # by name, then by size
    lost: int  # records that the log had no room for


Key = tuple[str, int]
Latencies = dict[tuple[Key, tuple[int, ...]], list[float]]  # s, by row and group, in the order of the log


def log_summary(show_straggler: bool = False) -> Summary:
    """Print the table of this rank's operations on rank 0, and return the numbers of this rank.

    Failed operations are left out. Latencies run from the submission of an operation to its end, so they contain the
    time that a rank waits for others.

    Args:
        show_straggler: True adds the least latency over the ranks, which is that of the last rank to come, and the time
            that this rank waited for it. All ranks must then call the function, because they exchange latencies. Where
            ranks have different numbers of records for a row, the latest ones are compared.

    Raises:
        NotInitializedError: mcr_dl does not run. InvalidArgumentError: the log is off; with ``show_straggler`` on all
            ranks, also if it is off on one of them.
    """
    session = current()
    if show_straggler and session.log is None:
        _exchange(None)
    log = log_of(session)
    log.collect()
    grouped = _group(log.records)
    rows = [_row(key, records) for key, records in sorted(grouped.items())]
    if show_straggler:
        own: Latencies = {}
        for key, records in grouped.items():
            for record in records:
                own.setdefault((key, record.group), []).append(record.duration)
        gathered = _exchange(own)
        rows = [_with_straggler(row, own, gathered) for row in rows]
    summary = Summary(rows, log.lost)
    if session.runtime.rank == 0:
        sys.stdout.write(table(summary, show_straggler) + "\n")
        sys.stdout.flush()
    return summary


def _group(records: Iterable[LogRecord]) -> dict[Key, list[LogRecord]]:
    grouped: dict[Key, list[LogRecord]] = {}
    for record in records:
        if not record.error:
            title = record.op + (f" | [Caller Func: {record.caller}]" if record.caller else "")
            grouped.setdefault((title, record.bytes), []).append(record)
    return grouped


def _row(key: Key, records: list[LogRecord]) -> SummaryRow:
    rates = [bandwidths(each.op, each.bytes, each.duration, len(each.group)) for each in records]
    durations = [each.duration for each in records]
    return SummaryRow(
        *key,
        len(records),
        1e3 * sum(durations),
        1e3 * trimmed_mean(durations),
        trimmed_mean([rate.tput for rate in rates]),
        trimmed_mean([rate.busbw for rate in rates]),
    )


def _exchange(own: Latencies | None) -> list[Latencies]:
    """Return the latencies of all ranks; None is that of a rank whose log is off.

    Raises:
        InvalidArgumentError: the log is off on some ranks; raised on all.
    """
    gathered: list[Latencies | None] = allgather_object(own, name="mcr_dl.log_summary")
    without = [rank for rank, latencies in enumerate(gathered) if latencies is None]
    if without:
        raise InvalidArgumentError(
            f"show_straggler compares the logs of all ranks, and the log is off on rank(s) "
            f"{', '.join(map(str, without))}; call mcr_dl.configure(enabled=True) on all ranks."
        )
    return [latencies for latencies in gathered if latencies is not None]


def _with_straggler(row: SummaryRow, own: Latencies, gathered: Sequence[Latencies]) -> SummaryRow:
    """Add the least latencies over the ranks of each group, and this rank's excess over them."""
    total = waited = 0.0
    for place, mine in own.items():
        if place[0] != (row.op, row.size):
            continue
        of_ranks = [known[place] for known in gathered if place in known]
        common = min(map(len, of_ranks))
        least = [min(latencies) for latencies in zip(*(each[-common:] for each in of_ranks), strict=True)]
        total += sum(least)
        waited += sum(mine[-common:]) - sum(least)
    return row._replace(min_ms=1e3 * total, straggler_ms=1e3 * waited)


def table(summary: Summary, show_straggler: bool) -> str:
    """Return the numbers as a table."""
    heads = COLUMNS + (STRAGGLER_COLUMNS if show_straggler else ())
    lines = [list(heads)]
    last = ""
    for row in summary.rows:
        cells = [
            "" if row.op == last else row.op,
            _size(row.size),
            str(row.calls),
            *(f"{value:.3f}" for value in row[3:5]),
            *(f"{value:.2f}" for value in row[5:7]),
        ]
        if show_straggler:
            cells += [f"{value or 0.0:.3f}" for value in row[7:]]
        lines.append(cells)
        last = row.op
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    text = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    text = "\n".join(line.rstrip() for line in text.splitlines())
    if summary.lost:
        text += f"\n{summary.lost} records were lost: the log keeps a limited number (configure(capacity=...))."
    return text


def _size(size: int) -> str:
    """Return a number of bytes as text, in powers of 1024."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024 or unit == "GB":
            return f"{amount:g} {unit}" if unit == "B" else f"{amount:.2f} {unit}".replace(".00 ", ".0 ")
        amount /= 1024
    raise AssertionError(unit)
