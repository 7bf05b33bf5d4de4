"""The log of mcr_dl's operations: one record for each, from the core's list of completed operations.

A call is *noted* when it is submitted: its public name, size, group and, with ``debug``, the calling function. The core
lists every operation that it completes, with backend, algorithm and times. The two are joined by the operation's name,
or for messages by the time of submission. No operation is added, and nothing waits. While the log is off, an operation
costs one comparison.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from horocache.errors import InvalidArgumentError
from horocache.mcr_dl.bandwidth import bandwidths
from horocache.mcr_dl.session import Session, current, running

if TYPE_CHECKING:
    from horocache.mcr_dl.call_names import CallName
    from horocache.mcr_dl.session import Route

logger = logging.getLogger("horocache.mcr_dl")
CAPACITY = 100_000  # records that are kept if configure() does not say otherwise


@dataclass
class Settings:
    """The settings of the log, by the public code's names; see :func:`configure`."""

    enabled: bool = False
    verbose: bool = False
    prof_all: bool = True
    prof_ops: Sequence[str] = ()
    debug: bool = False
    capacity: int = CAPACITY


class LogRecord(NamedTuple):
    """A completed operation."""

    op: str  # the public function, such as "all_reduce"; "send" and "recv" for all messages
    name: str  # by which the ranks matched it; empty for a message
    backend: str  # that ran it, such as "shm"; "inline" for a small all_reduce whose data came with the agreement
    algorithm: str
    chosen_by: str  # "call", "rule", "table", or "order", the order of the backends; empty for a message
    bytes: int  # of this rank's tensor: its input, or its part of the output where it has no input
    dtype: str
    reduce_op: str  # empty if it is not a reduction
    group: tuple[int, ...]  # global ranks
    start: float  # seconds since 1970, when this rank submitted it
    duration: float  # seconds from the submission to the end
    transfer: float  # seconds of these in which the backend worked on it
    fused: int  # the number of operations that ran as one
    caller: str  # the function that called, with debug
    error: str  # empty if it succeeded


class _Note(NamedTuple):
    """A call that has been submitted."""

    title: str
    group: tuple[int, ...]
    size: int
    before: int  # ns of the monotonic clock, before and after the submission
    after: int
    caller: str


class CommsLog:
    """The records of one session.

    Role: owned by the session while the log is on; any thread may use it.
    """

    def __init__(self, session: Session, settings: Settings) -> None:
        self.lost = 0
        self.records: deque[LogRecord] = deque()
        self._runtime = session.runtime
        self._lock = threading.Lock()  # held while records are joined
        self._notes: dict[str, deque[_Note]] = {}  # by name; of messages by "send" and "recv"
        self._waiting = 0  # notes without a record
        self._since_1970_s = time.time() - time.monotonic()
        self._rank = session.runtime.rank
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Use other settings from now on; the records stay."""
        self.settings = settings
        self._runtime.log_operations(settings.capacity)
        if settings.verbose:
            _show_lines()

    def close(self) -> None:
        """End the core's list."""
        self._runtime.log_operations(0)

    def note(self, title: str, route: Route, name: CallName | None, size: int, before: int) -> None:
        """Note a call that has been submitted since ``before``, in ns of the monotonic clock."""
        settings = self.settings
        if not settings.prof_all and title not in settings.prof_ops:
            return
        caller = _caller() if settings.debug else ""
        key = title if name is None else _text(name.text)
        made = _Note(title, tuple(route.group.ranks), size, before, time.monotonic_ns(), caller)
        with self._lock:
            self._notes.setdefault(key, deque()).append(made)
            self._waiting += 1
            full = self._waiting >= settings.capacity
        if full:
            self.collect()
            self._forget_notes()

    def collect(self) -> list[LogRecord]:
        """Join the operations that the core has completed since the last call; returns their records."""
        with self._lock:
            taken, lost = self._runtime.take_log()
            self.lost += lost
            made = [record for each in taken if (record := self._join(each, lost > 0)) is not None]
            room = self.settings.capacity - len(made)
            while self.records and len(self.records) > room:
                self.records.popleft()
                self.lost += 1
            self.records.extend(made)
        return made

    def show(self) -> None:
        """With ``verbose``, log a line for each operation that has been completed since the last call."""
        if not self.settings.verbose:
            return
        for record in self.collect():
            logger.info("rank %d: %s", self._rank, _line(record))

    def _forget_notes(self) -> None:
        """Drop the notes if even those without a record are too many."""
        with self._lock:
            if self._waiting >= self.settings.capacity:
                self.lost += self._waiting
                self._notes, self._waiting = {}, 0

    def _join(self, taken: Sequence[Any], some_lost: bool) -> LogRecord | None:
        (name, op, reduce_op, dtype, backend, algorithm, chosen_by, _, error, _, _, _, _, fused, peer, *times) = taken
        submitted, _, started, ended = times
        note = self._take_message(op, submitted) if peer >= 0 else self._take(name, submitted, some_lost)
        if note is None:
            return None
        return LogRecord(
            note.title,
            "" if peer >= 0 else name,
            backend,
            algorithm,
            "" if peer >= 0 else chosen_by,
            note.size,
            dtype,
            reduce_op,
            note.group,
            self._since_1970_s + submitted / 1e9,
            (ended - submitted) / 1e9,
            (ended - started) / 1e9 if started else 0.0,
            fused,
            note.caller,
            error,
        )

    def _take(self, name: str, submitted: int, some_lost: bool) -> _Note | None:
        """Take the note of an operation. Operations of one name end in the order of their calls."""
        notes = self._notes.get(name)
        if not notes or notes[0].before > submitted:
            return None
        note = notes.popleft()
        self._waiting -= 1
        while some_lost and notes and notes[0].before <= submitted:  # the records of earlier calls are lost
            note = notes.popleft()
            self._waiting -= 1
        if not notes:
            del self._notes[name]
        return note

    def _take_message(self, op: str, submitted: int) -> _Note | None:
        notes = self._notes.get(op, ())
        found = next((note for note in notes if note.before <= submitted <= note.after), None)
        if found is not None:
            self._notes[op].remove(found)
            self._waiting -= 1
        return found


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def _caller() -> str:
    """Return the name of the function outside horocache that calls."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "horocache":
        frame = frame.f_back
    return frame.f_code.co_name


def _line(record: LogRecord) -> str:
    name = record.op + (f" | [Caller Func: {record.caller}]" if record.caller else "")
    where = f"{record.backend or 'no backend'}{record.algorithm and '/' + record.algorithm}"
    by = f" ({record.chosen_by})" if record.chosen_by else ""
    rates = bandwidths(record.op, record.bytes, record.duration, len(record.group))
    line = (
        f"{name} | backend: {where}{by} | msg size: {record.bytes} bytes of {record.dtype or 'nothing'} | "
        f"group: {list(record.group)} | time (ms): {record.duration * 1e3:.3f} | "
        f"tput (Gbps): {rates.tput:.3f} | busbw (Gbps): {rates.busbw:.3f}"
    )
    return f"{line} | failed: {record.error}" if record.error else line


# ---- the process-wide settings

_settings = Settings()


def configure(
    mcr_dl_config: Mapping[str, Any] | None = None,
    enabled: bool | None = None,
    prof_all: bool | None = None,
    prof_ops: Sequence[str] | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
    *,
    comms_logger: Mapping[str, Any] | None = None,
    capacity: int | None = None,
) -> None:
    """Switch the log of operations on or off, and set what it has. Arguments that are None leave a setting as it is.

    May be called before :func:`init`, and on some ranks only: the log adds no operation.

    Args:
        mcr_dl_config: a configuration with the section ``comms_logger``.
        enabled: True keeps a record of every operation.
        prof_all: False keeps only those of ``prof_ops``; True, the default, keeps all.
        prof_ops: names of operations, such as ``["all_reduce", "send"]``.
        verbose: True also logs a line for each operation, through the logger ``horocache.mcr_dl``, when a call has
            waited for one or :func:`synchronize` is called.
        debug: True adds the calling function to the records, and counts each function's operations separately.
        comms_logger: the same settings as a section: ``{"enabled": True, "verbose": False, ...}``.
        capacity: the most records that are kept, 100,000 at first. The oldest ones are lost, and counted.

    Raises:
        InvalidArgumentError: a setting is unknown or has a value of a wrong type.
    """
    given = dict(_section(mcr_dl_config, comms_logger))
    named = {"enabled": enabled, "prof_all": prof_all, "prof_ops": prof_ops, "verbose": verbose, "debug": debug}
    given.update({name: value for name, value in {**named, "capacity": capacity}.items() if value is not None})
    global _settings  # noqa: PLW0603  (the process-wide settings)
    _settings = replace(_settings, **_checked(given))
    session = running()
    if session is None:
        return
    if session.log is None or not _settings.enabled:
        end(session)
        begin(session)
    else:
        session.log.change(_settings)


def _section(config: Any, section: Any) -> Mapping[str, Any]:
    if config is not None:
        section = config.get("comms_logger") if isinstance(config, Mapping) else None
        if section is None:
            raise InvalidArgumentError(f"mcr_dl_config needs a section comms_logger; it is {config!r}.")
    if section is not None and not isinstance(section, Mapping):
        raise InvalidArgumentError(f"comms_logger must be a mapping of settings, not {section!r}.")
    return section or {}


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    known = sorted(each.name for each in fields(Settings))
    for name, value in given.items():
        if name not in known:
            raise InvalidArgumentError(f"there is no setting {name!r} of comms_logger; known: {', '.join(known)}.")
        if name == "prof_ops":
            good = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
        elif name == "capacity":
            good = isinstance(value, int) and not isinstance(value, bool) and value > 0
        else:
            good = isinstance(value, bool)
        if not good:
            raise InvalidArgumentError(f"the setting {name} of comms_logger cannot be {value!r}.")
    return dict(given)


def begin(session: Session) -> None:
    """Begin the log of a session if it is enabled."""
    if _settings.enabled:
        session.log = CommsLog(session, _settings)


def _show_lines() -> None:
    """Let the logger's lines be seen, unless the program has set it up."""
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def end(session: Session) -> None:
    """End the log of a session."""
    if session.log is not None:
        session.log.close()
        session.log = None


def log_records() -> list[LogRecord]:
    """Return the records of the operations that this rank has completed since the log is on, oldest first.

    Raises:
        NotInitializedError: mcr_dl does not run. InvalidArgumentError: the log is off.
    """
    log = log_of(current())
    log.collect()
    return list(log.records)


def log_of(session: Session) -> CommsLog:
    """Return the log of a session. Raises InvalidArgumentError if it is off."""
    if session.log is None:
        raise InvalidArgumentError("the log is off; call mcr_dl.configure(enabled=True) before the operations.")
    return session.log
