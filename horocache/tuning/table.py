"""Tuning tables: the times of all candidates by operation, layout and size, in a JSON file with a schema and a version.

The reader does not trust a file: it bounds its size, decodes it by the schema, and checks every number and text. A
candidate's name becomes a part of a selector rule, so that it may have only the characters of a name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from horocache.base.operation_codes import OP_NAMES
from horocache.base.untrusted_text import pointer_first, printable, read_regular_file
from horocache.errors import InvalidArgumentError
from horocache.tuning.fingerprint import Fingerprint

FORMAT = "horocache.tuning"
VERSION = 1
MAX_FILE_BYTES = 16 << 20
MAX_RANKS = 1 << 20
MAX_SIZE_BYTES = 1 << 40
MAX_LAYOUTS = 32  # of an operation
MAX_SIZES = 256  # of a layout
MAX_CANDIDATES = 256  # of a size
MAX_TEXT = 4096  # characters of a text
OPERATIONS = tuple(OP_NAMES.values())
_MOST_SAID = 300  # characters of the contents of a file that an error quotes

Operation = Literal["allreduce", "allgather", "broadcast", "reducescatter", "alltoall", "reduce", "gather", "scatter"]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
CandidateName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,80}(/[A-Za-z0-9_.-]{1,80})?\Z", max_length=161)]
_Count = Annotated[int, Meta(ge=0, le=1 << 50)]


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, repr_omit_defaults=True):
    """One backend, or one algorithm of it, and its time for an operation of one size.

    Attributes:
        name: the backend, with the algorithm if it has several: ``shm/oneshot``.
        median_us: median time of the set of overlapped operations, in microseconds; None if it was not measured.
        spread_us: the distance between the quartiles of these times, in microseconds.
        repetitions: number of times.
        wrong: number of wrong elements of all ranks; such a candidate never wins.
        reason: why the candidate was not measured.
    """

    name: CandidateName
    median_us: float | None = None
    spread_us: float = 0.0
    repetitions: _Count = 0
    wrong: _Count = 0
    reason: Text = ""


class Size(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The candidates for one size.

    Attributes:
        bytes: the size of the operation, as Note [Size of an operation] in operations.py defines it.
        candidates: all candidates that were tried.
    """

    bytes: Annotated[int, Meta(ge=1, le=MAX_SIZE_BYTES)]
    candidates: Annotated[tuple[Candidate, ...], Meta(min_length=1, max_length=MAX_CANDIDATES)]


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The sizes of one layout: a number of ranks on a number of hosts.

    Attributes:
        ranks: number of ranks, from 2 on.
        hosts: number of hosts.
        sizes: the sizes that were measured.
        host_names: names of the hosts.
    """

    ranks: Annotated[int, Meta(ge=2, le=MAX_RANKS)]
    hosts: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    sizes: Annotated[tuple[Size, ...], Meta(min_length=1, max_length=MAX_SIZES)]
    host_names: Annotated[tuple[Text, ...], Meta(max_length=MAX_TEXT)] = ()


class Measurements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The layouts of one operation."""

    op: Operation
    layouts: Annotated[tuple[Layout, ...], Meta(min_length=1, max_length=MAX_LAYOUTS)]


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job of a layout that ended before it had measured everything, and the reason."""

    ranks: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    hosts: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    reason: Text


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a file.

    Attributes:
        horocache: version of horocache.
        host: the host that was measured.
        libraries: versions of the libraries that the backends use, by name.
        when: date and time of the last measurement, in UTC, such as ``2027-01-31T12:00:00Z``.
        command: the arguments of ``horocache tune``.
        overlap: number of operations in a set, which are in flight at the same time.
        backends: the backends that were asked for, each with or without an algorithm; empty: all of the jobs.
        operations: the measurements.
        failures: jobs that failed.
    """

    format: Literal["horocache.tuning"]
    version: int
    horocache: Text
    host: Fingerprint
    libraries: Annotated[dict[Text, Text], Meta(max_length=64)]
    when: Text
    command: Annotated[tuple[Text, ...], Meta(max_length=1000)]
    overlap: Annotated[int, Meta(ge=1, le=1 << 20)]
    operations: Annotated[tuple[Measurements, ...], Meta(max_length=len(OPERATIONS))]
    backends: Annotated[tuple[CandidateName, ...], Meta(max_length=MAX_CANDIDATES)] = ()
    failures: Annotated[tuple[Failure, ...], Meta(max_length=1000)] = ()

    def layouts_of(self, op: str) -> tuple[Layout, ...]:
        """The layouts of an operation; empty if it was not measured."""
        return next((each.layouts for each in self.operations if each.op == op), ())


class _Head(msgspec.Struct, frozen=True):
    """The fields that every version of the format has, as they are written: a hostile value is not built."""

    format: msgspec.Raw = msgspec.Raw(b"null")
    version: msgspec.Raw = msgspec.Raw(b"null")


def canonical(table: Table) -> Table:
    """Return the table with all its lists in one order: candidates by time, and the others by their keys."""
    operations = []
    for measurements in sorted(table.operations, key=lambda each: OPERATIONS.index(each.op)):
        layouts = sorted(measurements.layouts, key=lambda each: (each.hosts, each.ranks))
        ordered = [msgspec.structs.replace(layout, sizes=tuple(_canonical_sizes(layout.sizes))) for layout in layouts]
        operations.append(Measurements(measurements.op, tuple(ordered)))
    failures = sorted(table.failures, key=lambda each: (each.hosts, each.ranks, each.reason))
    libraries = dict(sorted(table.libraries.items()))
    return msgspec.structs.replace(table, operations=tuple(operations), failures=tuple(failures), libraries=libraries)


def _canonical_sizes(sizes: Iterable[Size]) -> Iterator[Size]:
    def key(one: Candidate) -> tuple[bool, float, str]:
        return one.wrong > 0, math.inf if one.median_us is None else one.median_us, one.name

    for size in sorted(sizes, key=lambda each: each.bytes):
        yield Size(size.bytes, tuple(sorted(size.candidates, key=key)))


def encode(table: Table) -> bytes:
    """Encode a table as the contents of a file; equal contents give equal bytes, in any order of the lists."""
    return msgspec.json.format(msgspec.json.encode(canonical(table)), indent=1) + b"\n"


def save(table: Table, path: str | os.PathLike[str]) -> None:
    """Write a table to a file atomically. Raises OSError."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(encode(table))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Table:
    """Read a table from a file and check it.

    Raises:
        InvalidArgumentError: the file cannot be read, has another version, or does not hold a correct table. The
            message names the file and the place in it, as a JSON pointer.
    """
    try:
        return decode(read_regular_file(path, MAX_FILE_BYTES))
    except ValueError as error:
        said = printable(str(error)[:_MOST_SAID])
        raise InvalidArgumentError(f"tuning table {printable(os.fspath(path))}: {said}") from None


def decode(contents: bytes) -> Table:
    """Decode a table from the contents of a file and check it.

    Raises:
        ValueError: the contents are not a correct table; the message names the place, as a JSON pointer.
    """
    try:
        head = msgspec.json.decode(contents, type=_Head)
        if bytes(head.format) != b'"%s"' % FORMAT.encode():
            raise ValueError(f'/format: {_said(head.format)}; a tuning table\'s is "{FORMAT}".')
        if bytes(head.version) != b"%d" % VERSION:
            raise ValueError(
                f"/version: {_said(head.version)}; this horocache reads {VERSION}. Measure again with `horocache tune`."
            )
        table = msgspec.json.decode(contents, type=Table)
    except msgspec.ValidationError as error:
        raise ValueError(pointer_first(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}.") from None
    check(table)
    return table


def _said(raw: msgspec.Raw) -> str:
    return bytes(raw)[:40].decode(errors="backslashreplace")


def check(table: Table) -> None:
    """Check what the schema cannot express.

    Raises:
        ValueError: two entries have the same key, a number is not finite or contradicts another one, or a text has
            control characters. The message names the place, as a JSON pointer.
    """
    _check_texts(table)
    _check_unique("/operations", "op", [each.op for each in table.operations])
    for i, measurements in enumerate(table.operations):
        here = f"/operations/{i}/layouts"
        _check_unique(here, "ranks and hosts", [(each.ranks, each.hosts) for each in measurements.layouts])
        for j, layout in enumerate(measurements.layouts):
            if layout.hosts > layout.ranks:
                raise ValueError(f"{here}/{j}/hosts: {layout.hosts} hosts are more than the {layout.ranks} ranks.")
            _check_unique(f"{here}/{j}/sizes", "bytes", [size.bytes for size in layout.sizes])
            for k, size in enumerate(layout.sizes):
                place = f"{here}/{j}/sizes/{k}/candidates"
                _check_unique(place, "name", [one.name for one in size.candidates])
                for number, one in enumerate(size.candidates):
                    _check_candidate(f"{place}/{number}", one)


def _check_unique(place: str, key: str, values: Sequence[object]) -> None:
    first: dict[object, int] = {}
    for number, value in enumerate(values):
        if value in first:
            raise ValueError(f"{place}/{number}: has the same {key} as {place}/{first[value]}: {value}.")
        first[value] = number


def _check_candidate(place: str, one: Candidate) -> None:
    if one.median_us is not None and not 0 < one.median_us < math.inf:
        raise ValueError(f"{place}/median_us: {one.median_us} is not a time.")
    if not 0 <= one.spread_us < math.inf:
        raise ValueError(f"{place}/spread_us: {one.spread_us} is not a distance between two times.")
    if one.median_us is not None and one.repetitions < 1:
        raise ValueError(f"{place}/repetitions: {one.repetitions} repetitions cannot have a median.")
    if one.median_us is None and not one.wrong and not one.reason:
        raise ValueError(f"{place}: has neither median_us, nor wrong, nor reason.")
    if one.median_us is not None and one.reason:
        raise ValueError(f"{place}/reason: the candidate has a time; only a candidate without one has a reason.")


def _check_texts(table: Table) -> None:
    texts: list[tuple[str, str]] = [
        ("/horocache", table.horocache),
        ("/when", table.when),
        *((f"/host/{name}", getattr(table.host, name)) for name in ("cpu", "kernel", "hash")),
        *((f"/libraries/{name}", name + text) for name, text in table.libraries.items()),
        *((f"/command/{i}", text) for i, text in enumerate(table.command)),
        *((f"/failures/{i}/reason", each.reason) for i, each in enumerate(table.failures)),
    ]
    for i, measurements in enumerate(table.operations):
        for j, layout in enumerate(measurements.layouts):
            place = f"/operations/{i}/layouts/{j}"
            texts += [(f"{place}/host_names/{k}", name) for k, name in enumerate(layout.host_names)]
            for k, size in enumerate(layout.sizes):
                reasons = enumerate(one.reason for one in size.candidates)
                texts += [(f"{place}/sizes/{k}/candidates/{n}/reason", reason) for n, reason in reasons if reason]
    for place, text in texts:
        if not text.isprintable():
            raise ValueError(f"{place}: {text[:80]!r} has control characters.")
