"""The lines by which rank 0 of a job tells the command what it has measured: JSON, one record a line.

A rank that dies in the middle of a line leaves an incomplete last line, which the reader ignores.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from horocache.tuning.table import Candidate

PLAN_FILE = "plan.json"
RECORDS_FILE = "records.jsonl"


class Facts(msgspec.Struct, frozen=True, tag="facts"):
    """Facts of the running job: names of its hosts, versions of its libraries."""

    host_names: tuple[str, ...]
    libraries: dict[str, str]


class Began(msgspec.Struct, frozen=True, tag="began"):
    """A candidate runs for the first time with this operation and size; if the job ends now, it is the reason."""

    op: str
    bytes: int
    candidate: str


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """All candidates of an operation and size."""

    op: str
    bytes: int
    candidates: tuple[Candidate, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The job ends, for this reason."""

    reason: str


Record = Facts | Began | Measured | Failed
_decoder = msgspec.json.Decoder(Record)


class Writer:
    """Writes records to a file, each at once.

    Role: owned by rank 0's worker, used by one thread.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, record: Record) -> None:
        """Write one record."""
        self._file.write(msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Reader:
    """Reads the records that were written since the last call.

    Role: owned by the command, used by one thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0  # bytes

    def new(self) -> list[Record]:
        """Return the new complete records; none if the file does not exist yet."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _ = data.rpartition(b"\n")
        self._read += len(whole) + len(newline)
        return [_decoder.decode(line) for line in whole.splitlines()]
