"""Files and answers from untrusted sources: any contents give an exit code and at most one readable line."""

import functools
import itertools
import json
import os
import random
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from horocache.base.untrusted_text import printable, read_bounded
from horocache.base.usage import UsageError
from horocache.cli import entry_point
from horocache.cli.entry_point import main
from horocache.launch import cli as launch
from horocache.launch import config_file, hosts
from horocache.observe import flight, records

# Characters that a terminal acts on, of every kind.
UNSAFE = "\x1b]0;title\x07 \x9b31m \x7f \u202e \u2028 \u200b \ud800 [red]x[/red]"
JUNK = [
    None,
    True,
    -1,
    1 << 31,
    1 << 70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    UNSAFE,
    "9" * 5000,
    [],
    {},
    [[[]]],
    {"a": 1},
]


@pytest.fixture(autouse=True, scope="module")
def one_parser():
    """Thousands of runs share one parser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_point, "build_parser", functools.cache(entry_point.build_parser))
        yield


def record(rank=0):
    operation = {"name": "grad", "op": "allreduce", "process_set": 0, "handle": 1, "tensors": 1, "bytes": 4}
    events = [
        {"number": 1, "at_ns": 5, "what": "submitted", **operation},
        {"number": 1, "at_ns": 5, "what": "started", **operation, "sequence": 3},
        {"number": 2, "at_ns": 6, "what": "note", "note": "rank 1 has gone"},
    ]
    head = {"horocache": "1", "job": "j", "rank": rank, "size": 2, "host": "h", "pid": 7, "why": "asked"}
    rest = {"now_ns": 9, "clock_offset_ns": 0, "pending": [{"since_ns": 3, **operation}]}
    rest |= {"sets": [{"number": 3, "ranks": [0, 1]}]}
    return {**head, **rest, "events": events, "stacks": "Thread 1:\n  File x"}


def timeline(rank=0):
    header = {"version": "1", "rank": rank, "size": 2, "host": "a"}
    header |= {"clock_offset_ns": 0, "clock_error_ns": 0, "clock_measured_ns": 0}
    args = {"process_set": 0, "tensors": 1, "bytes": 4, "sequence": 0, "item": 0, "fused": 1, "backend": "shm"}
    span = {"ph": "X", "pid": 0, "tid": 1}
    return [
        {"ph": "M", "name": "horocache", "args": header},
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": 1, "args": {"name": "grad"}},
        {**span, "name": "NEGOTIATE_ALLREDUCE", "cat": "control", "ts": 1, "dur": 2},
        {**span, "name": "ALLREDUCE", "cat": "operation", "ts": 3, "dur": 4, "args": args},
        {**span, "name": "SEND", "cat": "message", "ts": 3, "dur": 4, "args": {"peer": 1, "message": 0}},
    ]


def places(node, path=()):
    """The path of every value in a document, as the keys that lead to it."""
    yield path
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(value, (*path, key))


def changed(document, path, value):
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = changed(document[path[0]], path[1:], value)
    return copy


def damaged(document, seed):
    """The document with every junk value at every path, then with random bytes."""
    for path in places(document):
        for junk in JUNK:
            yield json.dumps(changed(document, path, junk)).encode()
    good, numbers = json.dumps(document).encode(), random.Random(seed)
    for _ in range(150):
        at, length = numbers.randrange(len(good)), numbers.choice((0, 1, 8))
        yield good[:at] + numbers.randbytes(numbers.choice((0, 1, 4))) + good[at + length :]
    yield b"[" * 100_000
    yield b""


def check(code, capsys, contents):
    out, err = capsys.readouterr()
    assert code in (0, 1, 2), contents
    assert "Traceback" not in err, contents
    assert printable(out + err, keep="\n") == out + err, contents
    assert code == 0 or 1 <= err.count("\n") <= 3, (contents, err)
    assert len(err) < 2000, contents


def test_a_damaged_flight_record_is_at_most_an_error_of_one_line(tmp_path, capsys):
    good, file = tmp_path / "good.json", tmp_path / "file.json"
    good.write_text(json.dumps(record(1)))
    accepted = 0
    ways = itertools.cycle([[], ["--fr-trace", str(tmp_path / "trace")]])
    for contents, way in zip(damaged(record(), seed=1), ways, strict=False):
        file.write_bytes(contents)
        code = main(["dump", *way, str(file), str(good)])
        check(code, capsys, contents)
        accepted += code == 0
    assert accepted > 20, "no damage was harmless"


def test_a_damaged_timeline_is_at_most_an_error_of_one_line(tmp_path, capsys):
    file = tmp_path / "t.json"
    (tmp_path / "t.rank1.json").write_text(json.dumps(timeline(1)))
    for contents, what in zip(
        damaged(timeline(), seed=2), itertools.cycle(("summary", "breakdown", "merge")), strict=False
    ):
        file.write_bytes(contents)
        check(main(["timeline", what, str(file)]), capsys, contents)


def test_a_timeline_that_claims_many_ranks_does_not_allocate_memory_for_them(tmp_path, capsys):
    file = tmp_path / "t.json"
    file.write_text(json.dumps(changed(timeline(), (0, "args", "size"), 1 << 31)))
    assert main(["timeline", "summary", str(file)]) == 2
    assert "not from 1 to 1048576" in capsys.readouterr().err
    file.write_text(json.dumps(changed(timeline(), (0, "args", "size"), 1 << 20)))
    assert main(["timeline", "summary", str(file)]) == 0
    assert "no timeline of rank 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ... of 1048576" in capsys.readouterr().err


def test_control_characters_of_a_record_are_escaped(tmp_path, capsys):
    found = record()
    found |= {"host": UNSAFE, "why": UNSAFE, "stacks": f"one\n{UNSAFE}"}
    found["events"] = [
        changed(found["events"][0], ("name",), UNSAFE),
        changed(found["events"][2], ("note",), UNSAFE),
    ]
    found["pending"] = [changed(found["pending"][0], ("name",), UNSAFE)]
    found = json.loads(json.dumps(found).replace("\\ud800", "\\u0000"))  # JSON of horocache has no lone surrogate
    for rank in range(2):
        (tmp_path / f"{rank}.json").write_text(json.dumps({**found, "rank": rank}))
    assert main(["dump", str(tmp_path / "0.json"), str(tmp_path / "1.json")]) == 0
    out = capsys.readouterr().out
    assert printable(out, keep="\n") == out
    assert r"\x1b]0;title\x07 \x9b31m \x7f \u202e \u2028 \u200b" in out and "[red]x[/red]" in out


@pytest.fixture
def answering():
    """Starts a fake rank that answers with the given pieces, one by one; returns its name."""
    sockets = []

    def start(pieces):
        listening = socket.socket(socket.AF_UNIX)
        name = f"horocache.{os.getpid()}.0.{listening.fileno()}"
        listening.bind("\0" + name)
        listening.listen(1)
        sockets.append(listening)

        def answer():
            asking, _ = listening.accept()
            with asking:
                try:
                    for piece in pieces:
                        asking.sendall(piece)
                except OSError:
                    pass

        threading.Thread(target=answer, daemon=True).start()
        return name

    yield start
    for listening in sockets:
        listening.close()


def test_an_answer_without_end_is_limited_in_bytes_and_time(answering, monkeypatch):
    monkeypatch.setattr(flight, "MOST_BYTES", 1 << 20)
    received = []
    counted = socket.socket.recv
    monkeypatch.setattr(socket.socket, "recv", lambda self, most: received.append(most) or counted(self, most))

    def endless(wait=None):
        while True:
            if wait is not None:
                wait.wait(0.05)
            yield b" "

    with pytest.raises(flight.NoAnswerError, match="sends more than 1048576 bytes"):
        flight.ask(os.getpid(), answering(b" " * 65536 for _ in iter(int, 1)))
    assert len(received) < 1000
    monkeypatch.setattr(flight, "_TIMEOUT_S", 0.5)
    with pytest.raises(flight.NoAnswerError, match="does not answer"):
        flight.ask(os.getpid(), answering(endless(threading.Event())))
    with pytest.raises(flight.NoAnswerError, match=r"sends an invalid flight record: .*missing required field"):
        flight.ask(os.getpid(), answering([b'{"rank": 0}']))
    assert flight.ask(os.getpid(), answering([json.dumps(record()).encode()])).host == "h"


def test_a_closed_output_gives_no_traceback(tmp_path):
    file = tmp_path / "r.json"
    file.write_text(json.dumps({**record(), "stacks": "line\n" * 100_000}))
    command = [sys.executable, "-m", "horocache.tools", "dump", str(file)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # hides the error
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    reader.stdout.read(100)
    reader.stdout.close()
    assert reader.stderr.read() == b""
    assert reader.wait(30) == 141
    reader.stderr.close()
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, check=False, timeout=60
    )
    assert (closed.returncode, closed.stderr) == (0, b"")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (1, "horocache: standard output: No space left on device\n")


def test_a_file_without_end_is_read_up_to_the_limit():
    with pytest.raises(ValueError, match="more than 1000000 bytes"):
        read_bounded(Path("/dev/zero"), 1_000_000)


YAML = [
    "params: {cycle_time_ms: 2001-99-99}",
    "params: {cycle_time_ms: 2001-01-01}",
    "params: {cycle_time_ms: [1, 2]}",
    "params: {cycle_time_ms: {a: 1}}",
    "params: {cycle_time_ms: !!binary aGVsbG8=}",
    'timeline: {filename: "a\\0b"}',
    "[" * 5000,
    "{a: " * 5000,
    "params: {cycle_time_ms: " + "9" * 5000 + "}",
    "9" * 5000,
    "9" * 5000 + ": 1",
    "a: &a [x]\nb: [*a, *a]",
    "a: &a {<<: *a}",
    "a: &a [*a]",
    "? [a, b]\n: 1",
    "!!python/object/apply:os.system [true]",
    "controller: [gloo]",
    "controller: 2001-01-01",
    "params: {hierarchical_allreduce: " + "x" * 10_000 + "}",
    UNSAFE.encode(errors="replace").decode(),
    "x" * (2 << 20),
]


@pytest.mark.parametrize("text", YAML, ids=range(len(YAML)))
def test_an_invalid_configuration_file_is_an_error_of_one_line(tmp_path, capsys, text):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert launch.main(["--config-file", str(file), "-np", "1", "true"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("horocacherun: ") and err.count("\n") == 1 and len(err) < 1500
    assert printable(err, keep="\n") == err


def test_damaged_configuration_files_are_read_or_raise(tmp_path):
    good = b"params:\n  cycle_time_ms: 3\nautotune:\n  enabled: false\ntimeline: {filename: t.json, mark_cycles: yes}\n"
    file, numbers = tmp_path / "c.yaml", random.Random(3)
    pieces = [
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!int ",
        b"!!timestamp ",
        b"- ",
        b"? ",
        b"{",
        b"[",
        b"0x",
        b".inf",
        b"1_",
        b"\xff",
    ]
    read = 0
    for _ in range(200):
        at = numbers.randrange(len(good))
        file.write_bytes(
            good[:at] + numbers.choice([*pieces, numbers.randbytes(2)]) + good[at + numbers.randrange(4) :]
        )
        try:
            assert all(isinstance(argument, str) for argument in config_file.arguments_of(str(file)))
            read += 1
        except UsageError:
            pass
    assert read > 5


def test_damaged_host_files_are_read_or_raise(tmp_path):
    good = b"# hosts\nlocalhost slots=2\nlocalhost slots=3  # more\n"
    file, numbers = tmp_path / "hosts", random.Random(4)
    pieces = [
        b"9" * 5000,
        "²".encode(),
        b"\0",
        b"\xff",
        b"\x85",
        b"=",
        b",",
        b":",
        b"slots=",
        b" ",
        b"\n",
        UNSAFE[:9].encode(),
    ]
    read = 0
    for _ in range(200):
        at = numbers.randrange(len(good))
        file.write_bytes(good[:at] + numbers.choice(pieces) + good[at + numbers.randrange(4) :])
        try:
            assert 1 <= hosts.count_ranks(None, None, str(file)) <= 1 << 20
            read += 1
        except UsageError as error:
            assert len(str(error)) < 600 + len(str(file))
    assert read > 20


def test_a_record_of_the_largest_size_is_decoded_in_bounded_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    contents = b'{"events": [' + b"[],{}," * (1 << 21)
    with pytest.raises(ValueError):
        records.decode(contents)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
