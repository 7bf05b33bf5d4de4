"""``horocache dump``: shows the operations of the ranks of a running job, or of a job that has failed."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import msgspec

from horocache.base.untrusted_text import printable
from horocache.base.usage import complain
from horocache.observe import flight, fr_trace, nccl_ras
from horocache.observe.flight_report import compare, describe, pending_on_some
from horocache.observe.records import Record, load

_PID = re.compile("[0-9]{1,10}")


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="PID|FILE",
        help="a rank's process, or the launcher's for all its ranks; or flight records that were written",
    )
    parser.add_argument("--events", type=int, default=20, metavar="N", help="events of each rank to show (20)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print a JSON list with all of each rank's record")
    output.add_argument(
        "--fr-trace",
        metavar="FOLDER",
        help="write each rank's record into a folder instead, for python -m torch.distributed.flight_recorder.fr_trace",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; return 1 if a rank did not answer."""
    records: list[Record] = []
    running: list[Record] = []
    failures: list[str] = []
    for target in options.targets:
        if _PID.fullmatch(target) and not Path(target).exists():
            answers, silent = _ask(int(target))
            running += answers
            failures += silent
        else:
            records.append(load(Path(target)))
    records = sorted([*records, *running], key=lambda record: record.rank)
    if options.fr_trace is not None:
        for path in fr_trace.write(records, Path(options.fr_trace)) if records else []:
            sys.stdout.write(f"{printable(str(path))}\n")
    elif options.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(records)) + "\n")
    elif records:
        text = "\n\n".join([describe(record, options.events) for record in records])
        nccl = nccl_ras.describe_jobs(running)
        sys.stdout.write("\n".join([text, *compare(pending_on_some(records)), *([""] if nccl else []), *nccl]) + "\n")
    for failure in failures:
        complain("horocache", failure)
    return 1 if failures else 0


def _ask(pid: int) -> tuple[list[Record], list[str]]:
    try:
        return flight.ask_all(flight.ranks_of(pid))
    except flight.NoAnswerError as error:
        return [], [str(error)]
