"""Writes flight records as torch's own flight recorder does, for ``torch.distributed.flight_recorder.fr_trace``.

That tool matches the collectives of all ranks one by one, in the order of each rank. horocache's ranks submit in any
order, so the operations have the order in which the ranks agreed on them; those that they have not agreed on come last,
by their names. Sizes that differ between ranks by design, such as the rows of an allgather, are left out, so that the
tool does not take them for a mistake. The tensor's name is the only frame of an operation's stack. Messages are left
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import dumps
from typing import Any

from horocache.errors import InvalidArgumentError
from horocache.observe.flight_report import members_of_sets
from horocache.observe.records import Event, Pending, Record

_VERSION = "2.10"  # of the format
_PREFIX = "rank_"  # of the files; the tool finds it
# The tool's name of each operation, and whether input and output have equal sizes on all ranks.
_KINDS = {
    "allreduce": ("all_reduce", True, True),
    "allgather": ("all_gather_v", False, False),
    "broadcast": ("broadcast", True, True),
    "alltoall": ("all_to_all_v_single", False, False),
    "reducescatter": ("reduce_scatter_v", True, False),
    "reduce": ("reduce", True, True),
    "gather": ("gather", False, False),
    "scatter": ("scatter", False, False),
    "barrier": ("barrier", False, False),
    "join": ("barrier", False, False),
}


@dataclass
class _Operation:
    """One operation, as a record tells it."""

    found: Event | Pending
    submitted_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    failed: bool = False
    sequence: int | None = None  # None: it has not started
    start: int = 0  # number of the event; those of operations that ran as one have their order

    def note(self, event: Event) -> None:
        """Add what an event tells."""
        if event.what == "submitted":
            self.submitted_ns = event.at_ns
        elif event.what == "started" and self.sequence is None:  # a large group starts in pieces
            self.started_ns, self.sequence, self.start = event.at_ns, event.sequence, event.number
        elif event.what in ("done", "failed"):
            self.ended_ns, self.failed = event.at_ns, event.what == "failed"

    @property
    def state(self) -> str:
        """The state, in torch's words."""
        if self.ended_ns and not self.failed:
            return "completed"
        return "scheduled" if self.sequence is None else "started"


def write(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write one file for each record into ``folder``, which is created; return their paths.

    Raises:
        InvalidArgumentError: two records are of one rank, the records are of several jobs, or the folder has files of
            other ranks.
        OSError: a file cannot be written.
    """
    ranks = [record.rank for record in records]
    if len(set(ranks)) < len(ranks):
        raise InvalidArgumentError(f"two of the records are of one rank (ranks {sorted(ranks)}); give one for each.")
    if len({record.job for record in records}) > 1:
        raise InvalidArgumentError("the records are of several jobs; give those of one.")
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted({path.name for path in folder.glob(f"{_PREFIX}*")} - {f"{_PREFIX}{rank}" for rank in ranks})
    if others:  # torch's tool would take them for ranks of this job
        raise InvalidArgumentError(f"'{folder}' has {others[0]}, which is not of these ranks; name another folder.")
    members = members_of_sets(records)
    paths: list[Path] = []
    for record, entries in zip(records, _entries(records), strict=True):
        sets = {str(number): _describe_set(number, ranks_of) for number, ranks_of in members.items()}
        dump = {"version": _VERSION, "rank": record.rank, "pg_config": sets, "pg_status": {}, "entries": entries}
        path = folder / f"{_PREFIX}{record.rank}"
        path.write_bytes(dumps(dump))
        paths.append(path)
    return paths


def _describe_set(number: int, ranks: Sequence[int]) -> dict[str, str]:
    return {"name": str(number), "desc": _set_name(number), "ranks": str(list(ranks))}


def _set_name(number: int) -> str:
    return f"process set {number}" if number else "world"


def _entries(records: Sequence[Record]) -> Iterable[list[dict[str, Any]]]:
    """Return each rank's entries, from the first operation on that all ranks of its process set still know."""
    operations = [_operations(record) for record in records]
    first: dict[int, int] = {}
    for record, of_rank in zip(records, operations, strict=True):
        # A record that has lost events may have lost some operations of those that ran as one.
        cut = int(bool(record.events) and record.events[0].number > 1)
        begin: dict[int, int] = {}
        for operation in of_rank:
            if operation.sequence is not None:
                begin.setdefault(operation.found.process_set, operation.sequence + cut)
        for process_set, sequence in begin.items():
            first[process_set] = max(sequence, first.get(process_set, 0))
    for record, of_rank in zip(records, operations, strict=True):
        counts: Counter[int] = Counter()
        entries: list[dict[str, Any]] = []
        for operation in of_rank:
            process_set = operation.found.process_set
            if operation.sequence is not None and operation.sequence < first.get(process_set, 0):
                continue
            entries.append(_entry(record, len(entries), counts[process_set], operation))
            counts[process_set] += 1
        yield entries


def _operations(record: Record) -> list[_Operation]:
    """Return the collectives of a record, in the agreed order; those without one come last, by name."""
    operations = _collect(record)
    started = [operation for operation in operations if operation.sequence is not None]
    started.sort(key=lambda operation: (operation.sequence or 0, operation.start))
    # One that has ended well has started, too, but that event is lost: it has no place in the order any more.
    waiting = [
        operation
        for operation in operations
        if operation.sequence is None and (operation.failed or not operation.ended_ns)
    ]
    waiting.sort(key=lambda operation: (operation.found.process_set, operation.found.op, operation.found.name))
    return started + waiting


def _collect(record: Record) -> Collection[_Operation]:
    by_handle: dict[int, _Operation] = {}
    for event in record.events:
        if event.op in _KINDS:
            by_handle.setdefault(event.handle, _Operation(event)).note(event)
    for pending in record.pending:
        if pending.op in _KINDS:
            by_handle.setdefault(pending.handle, _Operation(pending, submitted_ns=pending.since_ns))
    return by_handle.values()


def _entry(record: Record, number: int, number_in_set: int, operation: _Operation) -> dict[str, Any]:
    found = operation.found
    kind, equal_inputs, equal_outputs = _KINDS[found.op]
    started, ended = operation.started_ns, operation.ended_ns
    return {
        "record_id": number,
        "pg_id": found.process_set,
        "process_group": (str(found.process_set), _set_name(found.process_set)),
        "collective_seq_id": number_in_set,
        "p2p_seq_id": 0,
        "op_id": number_in_set,
        "profiling_name": f"nccl:{kind}",
        "time_created_ns": operation.submitted_ns + record.clock_offset_ns,
        "time_discovered_started_ns": started + record.clock_offset_ns if started else None,
        "time_discovered_completed_ns": ended + record.clock_offset_ns if ended else None,
        "duration_ms": (ended - started) / 1e6 if started and ended else None,
        "input_sizes": [[found.bytes]] if equal_inputs else [[]],
        "output_sizes": [[found.bytes]] if equal_outputs else [[]],
        "input_dtypes": ["Byte"],
        "output_dtypes": ["Byte"],
        "state": operation.state,
        "retired": bool(ended),
        "timeout_ms": 0,
        "is_p2p": False,
        "frames": [{"name": f"{found.op} '{found.name}'", "filename": "horocache", "line": number_in_set}],
    }
