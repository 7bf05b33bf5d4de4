"""``horocache dump``: shows the operations of the ranks of a running job, or of a job that has failed."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from horocache.base.untrusted_text import printable
from horocache.base.usage import complain
from horocache.observe import flight
from horocache.observe.records import Event, Pending, Record, load

_PID = re.compile("[0-9]{1,10}")

_BYTES = ("B", "KiB", "MiB", "GiB")


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="PID|FILE",
        help="a rank's process, or the launcher's for all its ranks; or flight records that were written",
    )
    parser.add_argument("--events", type=int, default=20, metavar="N", help="events of each rank to show (20)")
    parser.add_argument("--json", action="store_true", help="print a JSON list with all of each rank's record")


def run(options: argparse.Namespace) -> int:
    """Run the command; return 1 if a rank did not answer."""
    records: list[Record] = []
    failures: list[str] = []
    for target in options.targets:
        if _PID.fullmatch(target) and not Path(target).exists():
            _ask_all(int(target), records, failures)
        else:
            records.append(load(Path(target)))
    records.sort(key=lambda record: record.rank)
    if options.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(records)) + "\n")
    elif records:
        text = "\n\n".join([_describe(record, options.events) for record in records])
        sys.stdout.write("\n".join([text, *_compare(records)]) + "\n")
    for failure in failures:
        complain("horocache", failure)
    return 1 if failures else 0


def _ask_all(pid: int, records: list[Record], failures: list[str]) -> None:
    try:
        ranks = flight.ranks_of(pid)
    except flight.NoAnswerError as error:
        failures.append(str(error))
        return
    for process, names in ranks.items():
        for name in names:
            try:
                records.append(flight.ask(process, name))
            except flight.NoAnswerError as error:
                failures.append(str(error))


def _describe(record: Record, most_events: int) -> str:
    now_ns = record.now_ns
    host, why = printable(record.host), printable(record.why)
    lines = [
        f"rank {record.rank} of {record.size} (process {record.pid} on {host}): {why}",
        f"  pending: {len(record.pending) or 'nothing'}",
    ]
    for pending in sorted(record.pending, key=lambda pending: pending.since_ns):
        lines.append(f"    {_operation(pending)}, for {(now_ns - pending.since_ns) / 1e9:.3f} s")
    shown = record.events[len(record.events) - min(most_events, len(record.events)) :]
    lines.append(f"  the last {len(shown)} of {len(record.events)} events, seconds before now:")
    for event in shown:
        is_note = event.what == "note"
        what = printable(event.note) if is_note else f"{printable(event.what):9} {_operation(event)}"
        lines.append(f"    {(event.at_ns - now_ns) / 1e9:12.6f}  {what}")
    if record.stacks:
        lines += ["  stacks:", *(f"    {printable(line)}" for line in record.stacks.rstrip().split("\n"))]
    return "\n".join(lines)


def _operation(found: Pending | Event) -> str:
    text = _name(found)
    if found.process_set:
        text += f" of process set {found.process_set}"
    if found.tensors > 1:
        text += f", {found.tensors} tensors"
    return f"{text}, {_size(found.bytes)}" if found.bytes else text


def _name(found: Pending | Event) -> str:
    return f"{printable(found.op)} '{printable(found.name)}'"


def _size(count: float) -> str:
    for unit in _BYTES[:-1]:
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} {_BYTES[-1]}"


def _compare(records: Sequence[Record]) -> Iterable[str]:
    """Describe the operations that only some of the ranks have pending: these ranks wait for the others."""
    if len(records) < 2:
        return
    has: dict[tuple[int, str], list[int]] = {}
    for record in records:
        for pending in record.pending:
            has.setdefault((pending.process_set, _name(pending)), []).append(record.rank)
    asked = [record.rank for record in records]
    some = {key: ranks for key, ranks in has.items() if len(ranks) < len(asked)}
    if not some:
        return
    yield ""
    yield "pending on some of these ranks only:"
    for (process_set, what), ranks in sorted(some.items()):
        of_set = f" of process set {process_set}" if process_set else ""
        lacking = [rank for rank in asked if rank not in ranks]
        yield f"  {what}{of_set}: on {_ranks(ranks)}, not on {_ranks(lacking)}"


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
