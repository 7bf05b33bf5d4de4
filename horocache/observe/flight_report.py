"""The text of flight records: one rank's, and a comparison of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from horocache.base.untrusted_text import printable
from horocache.observe.records import Event, Pending, Record

_BYTES = ("B", "KiB", "MiB", "GiB")
_BY_FEW = ("send", "recv", "join")  # operations that one rank may have pending by itself


def describe(record: Record, most_events: int) -> str:
    """Return the state of a rank and its last ``most_events`` events, as lines."""
    now_ns = record.now_ns
    host, why = printable(record.host), printable(record.why)
    lines = [
        f"rank {record.rank} of {record.size} (process {record.pid} on {host}): {why}",
        f"  pending: {len(record.pending) or 'nothing'}",
    ]
    for pending in sorted(record.pending, key=lambda pending: pending.since_ns):
        lines.append(f"    {describe_operation(pending)}, for {(now_ns - pending.since_ns) / 1e9:.3f} s")
    shown = record.events[len(record.events) - min(most_events, len(record.events)) :]
    lines.append(f"  the last {len(shown)} of {len(record.events)} events, seconds before now:")
    for event in shown:
        is_note = event.what == "note"
        what = printable(event.note) if is_note else f"{printable(event.what):9} {describe_operation(event)}"
        lines.append(f"    {(event.at_ns - now_ns) / 1e9:12.6f}  {what}")
    if record.stacks:
        lines += ["  stacks:", *(f"    {printable(line)}" for line in record.stacks.rstrip().split("\n"))]
    return "\n".join(lines)


def describe_operation(found: Pending | Event) -> str:
    """Return an operation's kind, name, process set and size."""
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


Some = dict[tuple[int, str], tuple[list[int], list[int]]]


def compare(some: Some) -> Iterable[str]:
    """Describe, as lines, what :func:`pending_on_some` has found."""
    if not some:
        return
    yield ""
    yield "pending on some of these ranks only:"
    for (process_set, what), (ranks, lacking) in sorted(some.items()):
        of_set = f" of process set {process_set}" if process_set else ""
        yield f"  {what}{of_set}: on {name_ranks(ranks)}, not on {name_ranks(lacking)}"


def pending_on_some(records: Sequence[Record], counts: Callable[[Record, Pending], bool] = lambda *_: True) -> Some:
    """Return the ranks that have a collective pending and those that lack it, by its process set and name.

    Args:
        records: of ranks of one job. A rank that has joined lacks nothing; and all ranks have agreed on a collective
            that has started, so some may have ended it.
        counts: a collective for which this is False on all ranks is left out.
    """
    joined = {record.rank for record in records if any(pending.op == "join" for pending in record.pending)}
    members = members_of_sets(records)
    some: Some = {}
    for (process_set, name), ranks in _holders(records, counts).items():
        asked = {record.rank for record in records if record.rank in members.get(process_set, ())} - joined
        lacking = sorted(asked.difference(ranks))
        if lacking:
            some[process_set, name] = ranks, lacking
    return some


def _holders(records: Sequence[Record], counts: Callable[[Record, Pending], bool]) -> dict[tuple[int, str], list[int]]:
    """Return the ranks that have a collective pending, for those that count and have not started."""
    has: dict[tuple[int, str], list[int]] = {}
    counted: set[tuple[int, str]] = set()
    started: set[tuple[int, str]] = set()
    for record in records:
        begun = {event.handle for event in record.events if event.what == "started"}
        for pending in record.pending:
            if pending.op in _BY_FEW:
                continue
            key = pending.process_set, _name(pending)
            has.setdefault(key, []).append(record.rank)
            if counts(record, pending):
                counted.add(key)
            if pending.handle in begun:
                started.add(key)
    return {key: ranks for key, ranks in has.items() if key in counted - started}


def members_of_sets(records: Sequence[Record]) -> dict[int, list[int]]:
    """Return the ranks of every process set of one job, by its number."""
    members = {found.number: list(found.ranks) for record in records for found in record.sets}
    return members | {0: list(range(max(record.size for record in records)))}


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
