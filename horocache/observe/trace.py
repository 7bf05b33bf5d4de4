"""Timelines of the ranks of a job: read from their files, and merged into one with common clocks.

The files are untrusted. A mistake in a file is an error that names the file. `load` checks everything that later steps
rely on. Nothing in a file is run or opened, and no size in it is trusted.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from horocache.base.paths import is_file
from horocache.base.untrusted_text import read_bounded
from horocache.errors import InvalidArgumentError

# Largest relative difference between the speeds of two hosts' clocks: twice that of cheap crystals.
_DRIFT = 1e-4
_MOST_BYTES = 1 << 30  # the largest file
_MOST_RANKS = 1 << 20
_MOST_SAID = 200  # characters of the file that an error quotes

Event = dict[str, Any]
# Identifies an operation on all ranks: process set, number of the plan, position in the plan.
Key = tuple[int, int, int]
# Identifies a message on both ranks: "message", sender, receiver, number among the sender's messages.
MessageKey = tuple[str, int, int, int]


class Span(NamedTuple):
    """One phase of one operation, or the operation itself. Times in us of rank 0's clock."""

    name: str
    category: str
    row: int
    begin: float
    end: float
    args: Mapping[str, Any]


class Trace(NamedTuple):
    """The timeline of one rank."""

    path: Path
    rank: int
    size: int
    host: str
    clock_offset_us: float  # already added to the times of `spans`, but not to those of `events`
    clock_error_us: float  # largest error of these times, which they reach at the end of the trace
    rows: Mapping[int, str]  # row -> tensor
    events: Sequence[Event]  # as the file has them
    spans: Sequence[Span]


def path_of_rank(path: Path, rank: int) -> Path:
    """Return the path of a rank's timeline, if rank 0 writes ``path``."""
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def remove_spares(path: Path, size: int) -> None:
    """Remove the spare copies that ranks left behind if they were killed while they wrote a timeline."""
    for rank in range(size):
        file = path_of_rank(path, rank).resolve()
        with contextlib.suppress(OSError):
            file.with_name(file.name + ".spare").unlink(missing_ok=True)


def paths_of_ranks(path: Path) -> list[Path]:
    """Return the files of all ranks that exist, rank 0's first; ``path`` is the file of rank 0.

    Raises:
        InvalidArgumentError: the file of rank 0 does not exist.
    """
    if not is_file(path):
        raise InvalidArgumentError(f"there is no timeline '{path}'.")
    name = re.compile(re.escape(path.stem) + r"\.rank(\d+)" + re.escape(path.suffix))
    others = [(int(found.group(1)), entry) for entry in path.parent.iterdir() if (found := name.fullmatch(entry.name))]
    return [path, *(entry for _, entry in sorted(others))]


def load(path: Path) -> Trace:
    """Read the timeline of one rank.

    Raises:
        InvalidArgumentError: the file cannot be read, or is not a timeline of horocache; the message names it.
    """
    try:
        events = json.loads(read_bounded(path, _MOST_BYTES))
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise InvalidArgumentError(f"'{path}' is not a timeline: it holds no list of events.")
        header = next((event["args"] for event in events if event.get("name") == "horocache"), None)
        if header is None:
            raise InvalidArgumentError(f"'{path}' is not a timeline of horocache: it has no event 'horocache'.")
        offset = _time(header["clock_offset_ns"]) / 1e3
        size = _whole(header["size"], 1, _MOST_RANKS)
        rank = _whole(header["rank"], 0, size - 1)
        spans = list(_spans(events, offset))
        _check(rank, events, spans)
        return Trace(
            path,
            rank,
            size,
            str(header["host"]),
            offset,
            _clock_error(header, max((span.end for span in spans), default=0.0) - offset),
            {int(e["tid"]): str(e["args"]["name"]) for e in events if e.get("name") == "thread_name"},
            events,
            spans,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(
            f"'{path}' cannot be read as a timeline: {type(error).__name__}: {str(error)[:_MOST_SAID]}."
        ) from error


def _time(value: Any) -> float:
    time = float(value)
    if not math.isfinite(time):
        raise ValueError(f"{time} is not a time")
    return time


def _whole(value: Any, least: int, most: int) -> int:
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"a rank or number of ranks is not from {least} to {most}")
    return number


def _check(rank: int, events: Iterable[Event], spans: Iterable[Span]) -> None:
    """Raise ValueError if a time or a key that is needed later is invalid."""
    for event in events:
        _time(event.get("ts", 0))
    for span in spans:
        key_of(span)
        message_key_of(rank, span)


def _clock_error(header: Mapping[str, Any], end_us: float) -> float:
    """Return the error of times at the end of a trace, in us; 0 on rank 0's host, whose clock is the reference."""
    error_us = _time(header["clock_error_ns"]) / 1e3
    since_us = end_us - _time(header["clock_measured_ns"]) / 1e3
    return error_us + max(since_us, 0.0) * _DRIFT if error_us else 0.0


def _spans(events: Iterable[Event], offset: float) -> Iterator[Span]:
    for event in events:
        if event.get("ph") == "X":
            begin = _time(event["ts"]) + offset
            args = event.get("args", {})
            if not isinstance(args, dict):
                raise TypeError("the args of an event are not an object")
            yield Span(
                str(event["name"]), str(event["cat"]), int(event["tid"]), begin, begin + _time(event["dur"]), args
            )


def key_of(span: Span) -> Key | None:
    """Return the operation's key, equal on all ranks; None if the span is not an operation that ran."""
    args = span.args
    if span.category != "operation" or "sequence" not in args:
        return None
    return int(args["process_set"]), int(args["sequence"]), int(args["item"])


def message_key_of(rank: int, span: Span) -> MessageKey | None:
    """Return the message's key, equal on both ranks, for a span of ``rank``; None if no message arrived."""
    args = span.args
    if span.category != "message" or "message" not in args:
        return None
    peer, number = int(args["peer"]), int(args["message"])
    return ("message", rank, peer, number) if span.name == "SEND" else ("message", peer, rank, number)


def load_all(paths: Sequence[Path]) -> list[Trace]:
    """Read the timelines of a job, in the order of ranks.

    Args:
        paths: only rank 0's file, beside which the other files are searched for, or the files of all ranks.

    Raises:
        InvalidArgumentError: a file is not a timeline, or two files are of the same rank, or of jobs of different
            sizes.
    """
    traces = sorted(map(load, paths_of_ranks(paths[0]) if len(paths) == 1 else paths), key=lambda trace: trace.rank)
    for first, second in pairwise(traces):
        if first.rank == second.rank:
            raise InvalidArgumentError(f"'{first.path}' and '{second.path}' are both of rank {first.rank}.")
        if first.size != second.size:
            raise InvalidArgumentError(
                f"'{first.path}' is of a job of {first.size} ranks, '{second.path}' of one of {second.size}."
            )
    return traces


def merge(traces: Sequence[Trace]) -> dict[str, Any]:
    """Merge the traces of all ranks into one in Chrome's format: clocks start at 0, and an arrow links each operation.

    Returns:
        The object to write as JSON; its ``otherData`` has ``clock_error_us``, the largest error between two ranks'
        times.
    """
    start = min((span.begin for trace in traces for span in trace.spans), default=0.0)
    events: list[Event] = []
    places: dict[Key | MessageKey, list[Event]] = {}
    for trace in traces:
        for event in trace.events:
            shifted = dict(event)
            if "ts" in shifted:
                shifted["ts"] = round(float(shifted["ts"]) + trace.clock_offset_us - start, 3)
            events.append(shifted)
        for span in trace.spans:
            key = key_of(span) or message_key_of(trace.rank, span)
            if key is not None:
                place = {"pid": trace.rank, "tid": span.row, "ts": round(span.begin - start, 3)}
                places.setdefault(key, []).append(place)
    for number, steps in enumerate(places.values()):
        if len(steps) > 1:
            events += _arrow(number, sorted(steps, key=lambda step: float(step["ts"])))
    errors = sorted((trace.clock_error_us for trace in traces), reverse=True)[:2]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clock_error_us": sum(errors)}}


def _arrow(number: int, places: Sequence[Event]) -> Iterator[Event]:
    """Yield flow events: a start, steps and an end, each bound to the operation that begins at its time."""
    for index, place in enumerate(places):
        kind = "s" if index == 0 else "f" if index == len(places) - 1 else "t"
        end = {"bp": "e"} if kind == "f" else {}
        yield {"ph": kind, "name": "same operation", "cat": "flow", "id": number, **place, **end}
