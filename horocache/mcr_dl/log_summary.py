"""The table of the log: operations by name and size, with mean latencies and bandwidths, and stragglers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from horocache.collectives.object_collectives import allgather_object
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


def log_summary(show_straggler: bool = False) -> Summary:
    """Print the table of this rank's operations on rank 0, and return the numbers of this rank.

    Failed operations are left out. Latencies run from the submission of an operation to its end, so they contain the
    time that a rank waits for others.

    Args:
        show_straggler: True adds the least latency over the ranks, which is that of the last rank to come, and the time
            that this rank waited for it. All ranks must then call the function, because they exchange latencies. Where
            ranks have different numbers of records for a row, the latest ones are compared.

    Raises:
        NotInitializedError: mcr_dl does not run. InvalidArgumentError: the log is off.
    """
    session = current()
    log = log_of(session)
    log.collect()
    grouped = _group(log.records)
    rows = [_row(key, records) for key, records in sorted(grouped.items())]
    if show_straggler:
        own = {key: [record.duration for record in records] for key, records in grouped.items()}
        gathered: list[dict[Key, list[float]]] = allgather_object(own, name="mcr_dl.log_summary")
        rows = [_with_straggler(row, own[row.op, row.size], gathered) for row in rows]
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


def _with_straggler(row: SummaryRow, own: list[float], gathered: Iterable[Mapping[Key, list[float]]]) -> SummaryRow:
    of_ranks = [known[row.op, row.size] for known in gathered if (row.op, row.size) in known]
    common = min(map(len, of_ranks))
    least = [min(latencies) for latencies in zip(*(each[-common:] for each in of_ranks), strict=True)]
    waited = sum(mine - best for mine, best in zip(own[-common:], least, strict=True))
    return row._replace(min_ms=1e3 * sum(least), straggler_ms=1e3 * waited)


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
