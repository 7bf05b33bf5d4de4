"""The output of several ranks becomes lines of one terminal."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horocache.launch import output
from horocache.launch.output import Sink, Stream, Tail


class Terminal:
    """The streams of several ranks into one sink; the test feeds them."""

    def __init__(self, ranks: int, prefix: bool = True) -> None:
        self.read_end, write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.sink = Sink(write_end)
        self.pipes = [os.pipe() for _ in range(ranks)]
        self.streams = [
            Stream(pipe[0], self.sink, b"[%d] " % rank if prefix else b"", None) for rank, pipe in enumerate(self.pipes)
        ]

    def write(self, rank: int, data: bytes, due: bool = False) -> None:
        os.write(self.pipes[rank][1], data)
        self.streams[rank].read()
        if due:
            self.streams[rank].show_partial(float("inf"))

    def shown(self) -> bytes:
        data = b""
        while self.sink.waiting:
            self.sink.write_some()
            data += os.read(self.read_end, 1 << 16)
        return data

    def close(self) -> None:
        for stream, pipe in zip(self.streams, self.pipes, strict=True):
            os.close(pipe[1])
            stream.drain()
        os.close(self.read_end)
        os.close(self.sink.fd)


@pytest.fixture
def terminal():
    made = Terminal(3)
    yield made
    made.close()


def test_a_line_that_comes_in_pieces_is_shown_whole(terminal):
    terminal.write(0, b"hel")
    terminal.write(1, b"other\n")
    terminal.write(0, b"lo\n")
    assert terminal.shown() == b"[1] other\n[0] hello\n"


def test_a_partial_line_that_is_due_is_shown_and_continued(terminal):
    terminal.write(0, b"name? ", due=True)
    terminal.write(0, b"Ada\n")
    assert terminal.shown() == b"[0] name? Ada\n"


def test_a_partial_line_that_another_rank_interrupts_continues_in_a_new_line(terminal):
    terminal.write(0, b"half", due=True)
    terminal.write(1, b"other\n")
    terminal.write(0, b" rest\n")
    assert terminal.shown() == b"[0] half\n[1] other\n[0]  rest\n"


def test_an_interrupted_complete_line_leaves_no_empty_line(terminal):
    terminal.write(0, b"all of it", due=True)
    terminal.write(1, b"other\n")
    terminal.write(0, b"\nnext\n")
    assert terminal.shown() == b"[0] all of it\n[1] other\n[0] next\n"


def test_progress_bars_of_two_ranks_take_turns_in_lines(terminal):
    terminal.write(0, b"\r 10%")
    terminal.write(0, b"\r 20%")
    terminal.write(1, b"\r 10%")
    terminal.write(1, b"\r 90%\n")
    terminal.write(0, b"\r 30%\n")
    assert terminal.shown() == b"\r[0]  10%\r[0]  20%\n\r[1]  10%\r[1]  90%\n\r[0]  30%\n"


def test_carriage_return_and_line_feed_are_one_end_of_line(terminal):
    terminal.write(0, b"a\r\n\r\nb\r")
    terminal.write(0, b"\n")
    assert terminal.shown() == b"[0] a\r\n\r[0] \n[0] b\r\n"


def test_the_launchers_own_lines_stand_alone(terminal):
    terminal.write(0, b"half", due=True)
    terminal.sink.line("horocacherun: note")
    assert terminal.shown() == b"[0] half\nhorocacherun: note\n"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=12))
def test_one_rank_without_prefix_passes_byte_for_byte(pieces):
    terminal = Terminal(1, prefix=False)
    for index, piece in enumerate(pieces):
        terminal.write(0, piece, due=index % 3 == 0)
    terminal.streams[0].show_partial(float("inf"))
    assert terminal.shown() == b"".join(pieces)
    terminal.close()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.text("ab", max_size=5).map(str.encode), st.booleans(), st.booleans()),
        max_size=20,
    )
)
def test_lines_have_text_of_one_rank_and_no_text_is_lost(steps):
    terminal = Terminal(3)
    wrote = {rank: b"" for rank in range(3)}
    for rank, text, ends, due in steps:
        data = b"%d" % rank + text + (b"\n" if ends else b"")
        wrote[rank] += data
        terminal.write(rank, data, due)
    for stream in terminal.streams:
        stream.show_partial(float("inf"))
    seen = {rank: b"" for rank in range(3)}
    for line in terminal.shown().splitlines():
        assert line[:1] == b"[" and line[2:4] == b"] "
        assert set(line[4:]) <= set(b"ab" + line[1:2])
        seen[int(line[1:2])] += line[4:]
    assert seen == {rank: data.replace(b"\n", b"") for rank, data in wrote.items()}
    terminal.close()


def test_a_closed_reader_breaks_only_its_sink(terminal):
    other = Terminal(1)
    os.close(other.read_end)
    other.write(0, b"x\n")
    other.sink.write_some()
    assert other.sink.broken
    assert other.sink.waiting == 0
    other.read_end = os.open(os.devnull, os.O_RDONLY)
    other.close()


def test_the_tail_keeps_the_last_lines_as_a_terminal_can_show_them():
    tail = Tail()
    tail.add(b"".join(b"line %d\n" % number for number in range(100)))
    tail.add(b"\r 10%\r 20%\r 30%\n\x1b[31mred\xff\x00\nla")
    tail.add(b"st")
    lines = tail.lines()
    assert lines[-4:] == ["line 99", " 30%", "\\x1b[31mred\\xff\\x00", "last"]
    assert len(lines) == 21


class Counted:
    """A pattern that counts the bytes that it searches."""

    def __init__(self, pattern) -> None:
        self.pattern, self.seen = pattern, 0

    def finditer(self, data):
        self.seen += len(data)
        return self.pattern.finditer(data)


@pytest.fixture
def searched(monkeypatch):
    counted = Counted(output.TERMINATOR)
    monkeypatch.setattr(output, "TERMINATOR", counted)
    return counted


def test_a_line_without_end_is_searched_once_and_needs_little_memory(terminal, searched):
    piece, pieces, shown = b"x" * 50_000, 40, b""
    for _ in range(pieces):
        terminal.write(0, piece)
        assert terminal.streams[0].pending <= output.MOST_PENDING
        assert terminal.streams[0].tail.unfinished <= 2 * output.TAIL_WIDTH
        shown += terminal.shown()
    terminal.write(0, b"\nnext\n")
    assert shown + terminal.shown() == b"[0] " + piece * pieces + b"\n[0] next\n"
    assert searched.seen == len(piece) * pieces + 6


def test_single_dots_are_shown_every_second_and_searched_once(terminal, searched, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    emitted = []
    monkeypatch.setattr(terminal.sink, "segment", lambda source, prefix, text, end: emitted.append(len(text)))
    for _ in range(3000):
        terminal.write(0, b".")
        terminal.streams[0].show_partial(clock[0])
        clock[0] += 0.01
    terminal.streams[0].show_partial(float("inf"))
    assert sum(emitted) == searched.seen == 3000
    assert 29 <= len(emitted) <= 32, "one for each of 30 seconds"
    assert terminal.streams[0].tail.lines() == ["." * output.TAIL_WIDTH]


def test_a_long_line_that_another_rank_interrupts_continues_with_its_prefix(terminal):
    long = b"x" * (output.MOST_PENDING + 1)
    for at in range(0, len(long), 30_000):
        terminal.write(0, long[at : at + 30_000])
    terminal.write(1, b"other\n")
    terminal.write(0, b"rest\n")
    assert terminal.shown() == b"[0] " + long + b"\n[1] other\n[0] rest\n"


def test_lines_of_the_launcher_show_no_control_characters(terminal):
    terminal.sink.line("rank 0 left behind: \x1b[31m\u009b31m\u202e\u2028\ud800 (pid 7)")
    assert terminal.shown() == rb"rank 0 left behind: \x1b[31m\x9b31m\u202e\u2028\ud800 (pid 7)" + b"\n"
