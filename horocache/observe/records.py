"""Flight records, as a rank sends them or a file holds them. The content is untrusted: any process may have made it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from horocache.base.untrusted_text import read_bounded
from horocache.errors import InvalidArgumentError

MOST_BYTES = 64 << 20  # bytes; three times the size of 4,096 events whose names have the greatest length

Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Pending(msgspec.Struct, frozen=True, gc=False):
    """An operation that is running or waiting."""

    since_ns: Number
    name: str
    op: str
    process_set: Number
    tensors: Number
    bytes: Number
    handle: Number = 0


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event of an operation, or, if ``what`` is "note", any other event."""

    at_ns: Number
    what: str
    number: Number = 0
    note: str = ""
    name: str = ""
    op: str = ""
    process_set: Number = 0
    tensors: Number = 0
    bytes: Number = 0
    handle: Number = 0
    sequence: Number = 0  # if ``what`` is "started": its position in the agreed order of the process set


class SetMembers(msgspec.Struct, frozen=True, gc=False):
    """The ranks of a process set."""

    number: Number
    ranks: list[Rank]


class Record(msgspec.Struct, frozen=True):
    """The state and the last events of one rank; see cpp_core/observe/flight_text.h."""

    horocache: str
    rank: Rank
    size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    pid: Number
    host: str
    why: str
    now_ns: Number
    pending: list[Pending]
    events: list[Event]
    stacks: str = ""
    job: str = ""
    clock_offset_ns: Number = 0
    sets: list[SetMembers] = []  # all but the global one


def decode(data: bytes) -> Record:
    """Decode a record from its JSON.

    Raises:
        ValueError: the data is not a record; the message says what is wrong, and where.
    """
    try:
        return msgspec.json.decode(data, type=Record)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def load(path: Path) -> Record:
    """Read a record from a file.

    Raises:
        InvalidArgumentError: the file cannot be read, or is not a record.
    """
    try:
        return decode(read_bounded(path, MOST_BYTES))
    except OSError as error:
        raise InvalidArgumentError(f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgumentError(f"'{path}' is not a flight record: {error}") from error
