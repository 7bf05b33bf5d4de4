"""``horocache timeline``: merges the timelines of a job's ranks, and shows where its time went."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from horocache.base.untrusted_text import printable
from horocache.base.usage import UsageError, complain
from horocache.errors import InvalidArgumentError
from horocache.observe.breakdown import PARTS, Breakdown, break_down
from horocache.observe.trace import Trace, load_all, merge

_MOST_TENSORS = 10  # tensors that the summary lists
_MOST_NAMED = 10  # ranks that a message names
_RANKS_ABREAST = 4  # ranks side by side in a table


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    kinds = parser.add_subparsers(dest="what", required=True, metavar="merge|summary|breakdown")
    for name, about in (
        ("merge", "write one timeline of all ranks, with common clocks"),
        ("summary", "which tensors took how long, on which rank"),
        ("breakdown", "where the time of a step went on each rank, and which rank came last"),
    ):
        kind = kinds.add_parser(name, help=about)
        kind.add_argument("files", nargs="+", metavar="FILE", help="rank 0's timeline, or those of all ranks")
        if name == "merge":
            kind.add_argument("-o", "--output", metavar="FILE", help="(trace.merged.json for trace.json)")
        else:
            kind.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    try:
        traces = load_all([Path(file) for file in options.files])
    except InvalidArgumentError as error:
        raise UsageError(str(error)) from error
    _note_missing(traces)
    if options.what == "merge":
        return _merge(traces, options.output)
    report = _summary(traces) if options.what == "summary" else _as_json(break_down(traces))
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    elif options.what == "summary":
        _print_summary(report)
    else:
        _print_breakdown(report)
    return 0


def _note_missing(traces: Sequence[Trace]) -> None:
    missing = sorted(set(range(traces[0].size)) - {trace.rank for trace in traces})
    if missing:
        ranks = ", ".join(map(str, missing[:_MOST_NAMED])) + (", ..." if len(missing) > _MOST_NAMED else "")
        complain("horocache", f"no timeline of rank {ranks} of {traces[0].size} was given or found")


def _merge(traces: Sequence[Trace], output: str | None) -> int:
    first = traces[0].path
    target = Path(output) if output else first.with_name(f"{first.stem}.merged{first.suffix}")
    if target.resolve() in {trace.path.resolve() for trace in traces}:
        raise UsageError(f"'{target}' is one of the timelines to be merged")
    merged = merge(traces)
    try:
        target.write_text(json.dumps(merged), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write '{target}': {error.strerror}") from error
    error_us = merged["otherData"]["clock_error_us"]
    sys.stdout.write(
        f"wrote {printable(str(target))}: {len(traces)} ranks; times of two ranks are at most {error_us:g} us off. "
        "https://ui.perfetto.dev opens it.\n"
    )
    return 0


# ---- summary


def _summary(traces: Sequence[Trace]) -> dict[str, Any]:
    spent: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        for span in trace.spans:
            if span.category in ("operation", "message"):
                spent[trace.rows.get(span.row, "?")][trace.rank].append((span.end - span.begin) / 1e3)
    tensors = []
    for name, by_rank in spent.items():
        means = {rank: sum(times) / len(times) for rank, times in by_rank.items()}
        slowest = max(means, key=lambda rank: means[rank])
        count = max(map(len, by_rank.values()))
        total = max(sum(times) for times in by_rank.values())
        tensors.append(
            {"tensor": name, "times": count, "ms": total, "slowest_rank": slowest, "mean_ms": means[slowest]}
        )
    tensors.sort(key=lambda row: -float(str(row["ms"])))
    errors = sum("error" in span.args for trace in traces for span in trace.spans)
    return {"ranks": [trace.rank for trace in traces], "errors": errors, "tensors": tensors}


def _print_summary(report: dict[str, Any]) -> None:
    tensors = report["tensors"]
    rows = []
    for row in tensors[:_MOST_TENSORS]:
        rows.append(
            (
                printable(row["tensor"]),
                str(row["times"]),
                f"{row['ms']:.3f}",
                f"{row['mean_ms']:.3f}",
                str(row["slowest_rank"]),
            )
        )
    _print_table(("tensor", "times", "ms together", "mean ms", "slowest rank"), rows)
    more = len(tensors) - _MOST_TENSORS
    ends = [f"{more} more tensors"] if more > 0 else []
    ends += [f"{report['errors']} operations failed"] if report["errors"] else []
    if ends:
        sys.stdout.write("; ".join(ends) + "\n")


# ---- breakdown


def _as_json(found: Breakdown) -> dict[str, Any]:
    return {
        "steps": found.steps,
        "ranks": [rank._asdict() for rank in found.ranks],
        "latecomers": [late._asdict() for late in found.latecomers],
    }


def _print_breakdown(report: dict[str, Any]) -> None:
    steps = max(report["steps"], 1)

    def cell(value: float, total: float) -> str:
        return f"{value / steps:.3f} ({100 * value / total if total else 0:.0f} %)"

    sys.stdout.write(f"ms of each of {steps} steps\n")
    for first in range(0, len(report["ranks"]), _RANKS_ABREAST):
        ranks = report["ranks"][first : first + _RANKS_ABREAST]
        rows = [(part, *(cell(rank["parts"][part], rank["total"]) for rank in ranks)) for part in PARTS]
        rows.append(("nothing pending", *(cell(rank["nothing"], rank["total"]) for rank in ranks)))
        rows.append(("together", *(f"{rank['total'] / steps:.3f}" for rank in ranks)))
        _print_table(("", *(f"rank {rank['rank']}" for rank in ranks)), rows)
    if report["latecomers"]:
        late = report["latecomers"][0]
        sys.stdout.write(
            f"slowest: rank {late['rank']}, the last in {late['operations']} operations; "
            f"the others waited for it for {late['waited'] / steps:.3f} ms a step, added up\n"
        )


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415  (--json needs no terminal library)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)
