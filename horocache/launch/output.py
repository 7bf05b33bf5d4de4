"""The ranks' output: prefixes lines, shows progress bars and unfinished lines without delay, and changes no byte."""

import os
import re
import select
import time
from collections import deque
from typing import BinaryIO

from horocache.base.untrusted_text import printable

TERMINATOR = re.compile(rb"[\r\n]")
_PARTIAL_SECONDS = 0.1  # an unfinished line that has not grown for this time is shown, so that prompts appear
_MOST_PARTIAL_SECONDS = 1.0  # one whose first byte is older than this is shown, so that a slow row of dots appears
MOST_PENDING = 1 << 16  # bytes; a longer unfinished line is shown at once, in pieces
_PIECE = 4096  # bytes; poll() guarantees that a pipe takes this many without blocking (PIPE_BUF)
_MOST_WRITES = 16  # such pieces in a row
_MOST_READS = 64  # reads in a row, when draining; a pipe holds no more
_TAIL_LINES = 20
TAIL_WIDTH = 2000  # bytes of each line


class Sink:
    """One of the launcher's own outputs.

    Bytes wait here until poll() says that they can be written. A reader that stalls, such as a pager, therefore never
    keeps the launcher from seeing signals and the ends of ranks. The sink also knows the source in whose unfinished
    line the terminal's cursor stands.
    """

    FULL = 1 << 20  # bytes; while this many wait, the launcher reads nothing from the ranks

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken: OSError | None = None  # the error after which output is dropped; the job goes on
        self._waiting = bytearray()
        self._line_of: object | None = None

    @property
    def waiting(self) -> int:
        """Bytes not yet written."""
        return len(self._waiting)

    def write_some(self) -> None:
        """Write as much as does not block, up to 64 KiB; call it when poll() says that the output can be written."""
        poller = select.poll()
        poller.register(self.fd, select.POLLOUT)
        for _ in range(_MOST_WRITES):
            self._write_piece()
            if not self._waiting or not poller.poll(0):
                return

    def _write_piece(self) -> None:
        try:
            written = os.write(self.fd, self._waiting[:_PIECE])
        except BlockingIOError:
            return
        except OSError as error:  # EPIPE, EIO of a terminal that is gone, ENOSPC
            self.broken = error
            self._waiting.clear()
            return
        del self._waiting[:written]

    def line(self, text: str) -> None:
        """Add a line of the launcher's own; escapes control characters, as it may quote names from outside."""
        self._leave_line_of_others(self)
        self._put(printable(text, keep="\t").encode() + b"\n")

    def segment(self, source: object, prefix: bytes, text: bytes, terminator: bytes) -> None:
        """Add bytes of ``source`` up to a line feed or a carriage return, or of an unfinished line (no terminator).

        ``prefix`` is empty if the source is already inside its line.
        """
        self._leave_line_of_others(source)
        # A line feed right behind a carriage return ends a line that already has its prefix.
        if text or (terminator == b"\n" and self._line_of is None):
            self._put(prefix)
        self._put(text + terminator)
        if terminator == b"\n":
            self._line_of = None
        elif text:
            self._line_of = source

    def in_line_of(self, source: object) -> bool:
        """Return True if the cursor stands in a line of ``source``."""
        return self._line_of is source

    def _leave_line_of_others(self, source: object) -> None:
        if self._line_of is not None and self._line_of is not source:
            self._put(b"\n")
            self._line_of = None

    def _put(self, data: bytes) -> None:
        if not self.broken:
            self._waiting += data


class Prefix:
    """The prefix of each line of a rank: its number, preceded by the time if ``timestamps`` is True."""

    def __init__(self, text: bytes, timestamps: bool = False) -> None:
        self._text = text
        self._timestamps = timestamps

    def __bytes__(self) -> bytes:
        return (
            time.strftime("%a %b %d %H:%M:%S %Y", time.localtime()).encode() + self._text
            if self._timestamps
            else self._text
        )


class Stream:
    """The reading end of one rank's stdout or stderr. Owns its descriptor and its copy in the output directory.

    Each byte is scanned once. At most ``MOST_PENDING`` bytes of an unfinished line, plus one read, are buffered: a
    longer line passes in pieces, the first with the rank's prefix. A piece that follows another rank's output begins a
    line of its own, again with the prefix.
    """

    def __init__(self, fd: int, sink: Sink, prefix: Prefix, copy: BinaryIO | None) -> None:
        self.fd = fd
        self.sink = sink
        self.open = True
        self.tail = Tail()
        self.show_at: float | None = None  # when the unfinished line must be shown
        self._prefix = prefix
        self._copy = copy
        self._pending = bytearray()  # the part of the unfinished line that has not been shown; holds no terminator
        self._pending_since = 0.0
        self._inside = False  # True if the start of the current line has been shown
        self._progress = False  # True if the current line began with a carriage return
        os.set_blocking(fd, False)

    @property
    def pending(self) -> int:
        """Bytes of the unfinished line that have not been shown."""
        return len(self._pending)

    def read(self) -> bool:
        """Read the available bytes and return True if there were any; closes itself at the end of the file."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._keep(data)
        self.tail.add(data)
        self._show(data)
        return True

    def drain_now(self) -> None:
        """Read the available bytes without waiting for the end of the file: other processes may still hold the pipe."""
        for _ in range(_MOST_READS):
            if not (self.open and self.read()):
                break

    def drain(self) -> None:
        """Read the available bytes, and close."""
        self.drain_now()
        self.close()

    def show_partial(self, now: float) -> None:
        """Show the unfinished line if it is due."""
        if self.show_at is not None and now >= self.show_at:
            self._emit(self._take_pending(), b"")

    def close(self) -> None:
        """Show the rest and close the descriptor."""
        if not self.open:
            return
        self.show_partial(float("inf"))
        self.open = False
        os.close(self.fd)
        if self._copy is not None:
            self._copy.close()

    def _keep(self, data: bytes) -> None:
        if self._copy is None:
            return
        try:
            self._copy.write(data)
        except OSError as error:
            self.sink.line(f"horocacherun: cannot write {self._copy.name}: {error.strerror}; no more is kept there")
            self._copy.close()
            self._copy = None

    def _show(self, data: bytes) -> None:
        start = 0
        for match in TERMINATOR.finditer(data):
            self._emit(self._take_pending() + data[start : match.start()], match[0])
            start = match.end()
        if start == len(data):
            return
        now = time.monotonic()
        if not self._pending:
            self._pending_since = now
        self._pending += data[start:]
        if self._progress or len(self._pending) > MOST_PENDING:
            self._emit(self._take_pending(), b"")
        else:
            self.show_at = min(now + _PARTIAL_SECONDS, self._pending_since + _MOST_PARTIAL_SECONDS)

    def _take_pending(self) -> bytes:
        taken = bytes(self._pending)
        self._pending.clear()
        self.show_at = None
        return taken

    def _emit(self, text: bytes, terminator: bytes) -> None:
        # Another rank's output may have cut the line in two; the second half is then a line of its own.
        cut = self._inside and not self.sink.in_line_of(self)
        if not (cut and not text and terminator == b"\n"):
            self.sink.segment(self, b"" if self._inside and not cut else bytes(self._prefix), text, terminator)
        self._inside = not terminator and (self._inside or bool(text))
        if terminator:
            self._progress = terminator == b"\r"


class Tail:
    """The last lines of a stream, for the summary of a failure."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._current = bytearray()  # the unfinished line; of a long one, only the end

    @property
    def unfinished(self) -> int:
        """Bytes of the unfinished line that are kept."""
        return len(self._current)

    def add(self, data: bytes) -> None:
        """Append the next bytes of the stream."""
        first, *others = data.split(b"\n")
        self._current += first
        if others:
            *finished, rest = others
            self._lines.extend(filter(None, map(_visible, (bytes(self._current), *finished))))
            self._current = bytearray(rest)
        if len(self._current) > 2 * TAIL_WIDTH:
            del self._current[:-TAIL_WIDTH]

    def lines(self) -> list[str]:
        """Return the lines as text that a terminal can show."""
        current = _visible(bytes(self._current))
        lines = [*self._lines, current] if current else list(self._lines)
        return [printable(line.decode(errors="backslashreplace"), keep="\t") for line in lines]


def _visible(line: bytes) -> bytes:
    """Return the part of a line with carriage returns that stays visible on the screen."""
    return line.rstrip(b"\r").rpartition(b"\r")[2][-TAIL_WIDTH:]


def same_file(first: int, second: int) -> bool:
    """Return True if two descriptors are one terminal or file, where lines of one must not cut lines of the other."""
    try:
        one, other = os.fstat(first), os.fstat(second)
    except OSError:
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
