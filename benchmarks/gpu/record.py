"""Rows of the calibration: which call was made, what was expected, and what the library did.

A row is written to the rows file as soon as it is known, so that the rows of a section survive when the section is
killed. Before a call its name is written too: the last name without a row tells which call a killed section was in.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar

NOT_EXPORTED = -1
NOT_EXPORTED_TEXT = "not exported"
AT_ONCE = "at once"
WAITS = "waits"


@dataclass(frozen=True)
class Row:
    """One check."""

    section: str
    name: str
    call: str
    arguments: str  # in words
    expected: str | None  # None: the row only records what happens
    seen: str
    ms: float
    value: float | None = None
    unit: str = ""
    note: str = ""

    @property
    def deviates(self) -> bool:
        """True if the library did something else than expected."""
        return self.expected is not None and self.seen != self.expected


class Recorder:
    """Appends rows to a file that several processes may share."""

    def __init__(self, path: str, section: str) -> None:
        self.section = section
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def begin(self, name: str, call: str) -> None:
        """Note that a call is about to be made."""
        self._write({"begin": f"{name} ({call})", "process": os.getpid()})

    def about(self, facts: dict[str, str]) -> None:
        """Note the versions that every row of the run carries."""
        self._write({"about": facts})

    def add(
        self,
        name: str,
        call: str,
        arguments: str,
        seen: str,
        expected: str | None = None,
        ms: float = 0.0,
        value: float | None = None,
        unit: str = "",
        note: str = "",
    ) -> None:
        """Write one row."""
        row = Row(self.section, name, call, arguments, expected, seen, round(ms, 4), value, unit, note[:300])
        self._write({"row": asdict(row)})

    def _write(self, entry: dict[str, Any]) -> None:
        os.write(self._file, (json.dumps(entry) + "\n").encode())


class UnavailableError(Exception):
    """A library or a device is missing; the section ends, and a row says so."""


class Library:
    """A shared library, the prototypes of its functions, and the names of its result codes."""

    def __init__(self, path: str, prototypes: dict[str, tuple[Any, ...]], codes: type[IntEnum]) -> None:
        self.path = path
        self.codes = codes
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise UnavailableError(f"cannot load {path}: {error}") from None
        self._functions: dict[str, Callable[..., Any]] = {}
        for name, arguments in prototypes.items():
            function = getattr(self._library, name, None)
            if function is not None:
                function.argtypes = arguments
                function.restype = ctypes.c_int
                self._functions[name] = function
        self.missing = [name for name in prototypes if name not in self._functions]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self.__dict__.get("_functions", {}).get(name)
        if function is None:
            raise AttributeError(f"{self.__dict__.get('path')} has no function {name}")
        return function  # type: ignore[no-any-return]

    def find(self, name: str) -> Callable[..., Any] | None:
        """The function, or None if the library does not export it."""
        return self._functions.get(name)

    def text_function(self, name: str, *arguments: Any) -> Callable[..., Any] | None:
        """A function that returns a C string; None if the library does not export it."""
        function = getattr(self._library, name, None)
        if function is not None:
            function.argtypes = arguments
            function.restype = ctypes.c_char_p
        return function

    def code_name(self, code: int) -> str:
        """The code's name in the library's header; its number if the header has no name for it."""
        try:
            return self.spell(self.codes(code))
        except ValueError:
            return f"code {code}"

    def spell(self, code: IntEnum) -> str:
        """A known code as the library's header spells it."""
        return code.name

    def must(self, name: str, *arguments: Any) -> None:
        """Call a function that the checks rely on.

        Raises:
            CallError: the call returned an error.
        """
        function = self.find(name)
        code = NOT_EXPORTED if function is None else function(*arguments)
        if code != 0:
            what = NOT_EXPORTED_TEXT if function is None else self.code_name(code)
            raise CallError(f"{name}: {what}", code)


class CallError(Exception):
    """A call that a check relies on failed; the rest of the check's group is left out."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


L = TypeVar("L", bound=Library)


class Checks(Generic[L]):
    """Makes calls of one library and writes a row for each."""

    def __init__(self, recorder: Recorder, library: L) -> None:
        self.recorder = recorder
        self.library = library

    def __call__(
        self,
        name: str,
        call: str,
        arguments: str,
        *values: Any,
        expect: IntEnum | None = None,
        note: str | Callable[[], str] = "",
    ) -> int:
        """Make a call; the row has its result code.

        Args:
            name: names the check; unique in its section.
            call: the function.
            arguments: the arguments in words.
            values: the arguments.
            expect: the code that the documentation or the research gives; None records what happens.
            note: more facts, asked for after the call.

        Returns:
            The code; ``NOT_EXPORTED`` if the library does not have the function.
        """
        code, ms = self._timed(name, call, values)
        seen = NOT_EXPORTED_TEXT if code == NOT_EXPORTED else self.library.code_name(code)
        text = note if isinstance(note, str) else note()
        self.recorder.add(name, call, arguments, seen, self._expected(expect), ms, note=text)
        return code

    def blocking(
        self,
        name: str,
        call: str,
        arguments: str,
        *values: Any,
        busy_ms: float,
        expect: str | None = None,
    ) -> int:
        """Make a call while a stream is busy; the row says whether the call returned before half of ``busy_ms``."""
        code, ms = self._timed(name, call, values)
        if code == NOT_EXPORTED:
            seen = NOT_EXPORTED_TEXT
        elif code != 0:
            seen = self.library.code_name(code)
        else:
            seen = AT_ONCE if ms < busy_ms / 2 else WAITS
        self.recorder.add(name, call, arguments, seen, expect, ms, note=f"stream busy for {busy_ms:g} ms")
        return code

    def fact(
        self,
        name: str,
        call: str,
        arguments: str,
        seen: object,
        expect: str | None = None,
        value: float | None = None,
        unit: str = "",
        ms: float = 0.0,
        note: str = "",
    ) -> None:
        """Write a row for a fact other than a result code."""
        self.recorder.add(name, call, arguments, str(seen), expect, ms, value, unit, note)

    def figure(self, name: str, call: str, arguments: str, value: float, unit: str, note: str = "") -> None:
        """Write a row for a measured value."""
        self.recorder.add(name, call, arguments, f"{value:.4g} {unit}", None, 0.0, value, unit, note)

    def _timed(self, name: str, call: str, values: tuple[Any, ...]) -> tuple[int, float]:
        function = self.library.find(call)
        self.recorder.begin(name, call)
        if function is None:
            return NOT_EXPORTED, 0.0
        start = time.perf_counter()
        code = int(function(*values))
        return code, (time.perf_counter() - start) * 1000

    def _expected(self, code: IntEnum | None) -> str | None:
        return None if code is None else self.library.code_name(code)


def run_groups(recorder: Recorder, groups: tuple[Callable[..., None], ...], *arguments: Any) -> None:
    """Run groups of checks one after the other; a group that fails leaves a row and does not stop the next one."""
    for group in groups:
        name = f"group {group.__name__}"
        try:
            group(*arguments)
        except UnavailableError:
            raise
        except CallError as error:
            recorder.add(name, "", "", f"stopped: {error}", "finished")
        except Exception as error:  # a mistake in one group must not cost the others
            where = " < ".join(
                f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[::-1]
            )
            recorder.add(name, "", "", f"stopped: {type(error).__name__}", "finished", note=f"{error} at {where}")


R = TypeVar("R")


def in_thread(function: Callable[[], R], limit_s: float = 20.0) -> R | None:
    """Run a function in a thread of its own; None if it did not return in time (the thread is left behind)."""
    results: list[R] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            results.append(function())
        except BaseException as error:  # passed on to the caller
            failures.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(limit_s)
    if failures:
        raise failures[0]
    return results[0] if results else None


def median(values: list[float]) -> float:
    """The median; 0 of no values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return 0.0
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
