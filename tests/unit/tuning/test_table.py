"""Tuning tables in files: written atomically and alike every time, read strictly.

HC_TEST_MUTATIONS is the number of damaged files, and HC_TEST_FIRST_MUTATION the number of the first one.
"""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest

from horocache.errors import InvalidArgumentError
from horocache.tuning import table as tables
from horocache.tuning.lookup import World, bands_of, candidates_for, rules_of
from horocache.tuning.table import Failure, Table, canonical, decode, encode, load, save

from .tables import CANNOT, WRONG, make_table, random_table

MUTATIONS = int(os.environ.get("HC_TEST_MUTATIONS", "5000"))
FIRST = int(os.environ.get("HC_TEST_FIRST_MUTATION", "0"))

SHORT = {
    "allreduce": {
        (2, 1): {1024: {"shm/auto": 10, "shm/oneshot": 9, "mpi": CANNOT}, 4096: {"shm/auto": 12, "mpi/fold": WRONG}},
        (4, 2): {1024: {"mpi/fold": 100}},
    },
    "scatter": {(2, 1): {64: {"shm/auto": 3}}},
}


@pytest.fixture
def document():
    table = make_table(SHORT, failures=(Failure(8, 2, "the job ended with code 1"),))
    return json.loads(encode(table))


# ---- writing


@pytest.mark.parametrize("seed", range(20))
def test_a_saved_table_is_loaded_in_its_canonical_order(tmp_path, seed):
    table = random_table(seed)
    save(table, tmp_path / "t.json")
    assert load(tmp_path / "t.json") == canonical(table)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize("seed", range(20))
def test_equal_contents_give_equal_bytes_in_any_order(seed):
    table, rng = random_table(seed), random.Random(seed)
    document = json.loads(encode(table))

    def shuffle(value):
        if isinstance(value, list):
            rng.shuffle(value)
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            shuffle(each)

    shuffle(document["operations"])
    assert encode(decode(json.dumps(document).encode())) == encode(table)


def test_a_write_that_fails_leaves_the_old_table(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    save(make_table(SHORT), path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        save(make_table({}), path)
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["t.json"]


# ---- T4: paths without a table


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: None, "cannot be opened: No such file"),
        (lambda path: path.mkdir(), "is not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be opened: Too many levels of symbolic links"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.write_bytes(b""), "is not JSON"),
        (lambda path: path.write_bytes(b"\xff\xfe{}"), "is not JSON"),
        (lambda path: path.write_bytes(b'{"format": ' + b"[" * 100_000), "is not JSON"),
        (lambda path: path.write_bytes(b"[]"), "/: Expected `object`"),
        (lambda path: path.write_bytes(b"{}"), "/format: null; a tuning table's is"),
        (lambda path: path.open("wb").truncate((16 << 20) + 1), "has 16777217 bytes; 16777216 are allowed"),
    ],
)
def test_t4_a_path_without_a_table_is_one_error_with_its_name(tmp_path, make, text):
    path = tmp_path / "t.json"
    make(path)
    with pytest.raises(InvalidArgumentError) as raised:
        load(path)
    assert str(raised.value).startswith(f"tuning table {path}: ")
    assert text in str(raised.value) and str(raised.value).isprintable()


def test_t4_a_path_that_acts_on_the_terminal_is_escaped(tmp_path):
    with pytest.raises(InvalidArgumentError) as raised:
        load(str(tmp_path / "a\x1b[31m\nb"))
    assert str(raised.value).isprintable() and r"\x1b[31m\nb" in str(raised.value)


# ---- T4: tables that are wrong


def edit(path, value):
    """An edit of a document: it sets the value at ``path``, or removes it if ``value`` is None."""

    def apply(document):
        *above, last = path
        for key in above:
            document = document[key]
        if value is None:
            del document[last]
        else:
            document[last] = value

    return apply


LAYOUT = ("operations", 0, "layouts", 0)
SIZE = (*LAYOUT, "sizes", 0)
CANDIDATE = (*SIZE, "candidates", 0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (edit(["version"], 2), "/version: 2; this horocache reads 1. Measure again"),
        (edit(["version"], "1"), '/version: "1"; this horocache reads 1'),
        (edit(["format"], "horocache.program"), '/format: "horocache.program"; a tuning table'),
        (edit(["more"], 1), "Object contains unknown field `more`"),
        (edit(["host"], None), "Object missing required field `host`"),
        (edit(["host", "cores"], -2), "/host/cores: Expected `int` >= 1"),
        (edit(["host", "cpu"], "AMD\x1b[31m"), r"/host/cpu: 'AMD\x1b[31m' has control characters"),
        (edit(["when"], "now\n"), "/when: "),
        (edit(["libraries", "m\x07"], "1"), "/libraries/m"),
        (edit(["overlap"], 0), "/overlap: Expected `int` >= 1"),
        (edit(["failures", 0, "reason"], "\u202e"), "/failures/0/reason: "),
        (edit(["operations", 0, "op"], "allsum"), "/operations/0/op: Invalid enum value 'allsum'"),
        (edit(["operations", 0, "layouts"], []), "/operations/0/layouts: Expected `array` of length >= 1"),
        (edit([*LAYOUT, "ranks"], 1), "/operations/0/layouts/0/ranks: Expected `int` >= 2"),
        (edit([*LAYOUT, "ranks"], 1 << 70), "/operations/0/layouts/0/ranks: "),
        (edit([*LAYOUT, "hosts"], 3), "/operations/0/layouts/0/hosts: 3 hosts are more than the 2 ranks"),
        (edit([*LAYOUT, "host_names"], ["a\tb"]), "/operations/0/layouts/0/host_names/0: "),
        (edit([*SIZE, "bytes"], -1024), "/operations/0/layouts/0/sizes/0/bytes: Expected `int` >= 1"),
        (edit([*SIZE, "bytes"], 1.5), "/operations/0/layouts/0/sizes/0/bytes: Expected `int`, got `float`"),
        (edit([*SIZE, "bytes"], 4096), "/sizes/1: has the same bytes as /operations/0/layouts/0/sizes/0: 4096"),
        (edit([*CANDIDATE, "name"], "shm;*=mpi"), "/candidates/0/name: Expected `str` matching regex"),
        (edit([*CANDIDATE, "name"], "shm\n"), "/candidates/0/name: Expected `str` matching regex"),
        (edit([*CANDIDATE, "name"], "a/b/c"), "/candidates/0/name: Expected `str` matching regex"),
        (edit([*CANDIDATE, "name"], "shm/auto"), "/candidates/1: has the same name as "),
        (edit([*CANDIDATE, "median_us"], -3.0), "/candidates/0/median_us: -3.0 is not a time"),
        (edit([*CANDIDATE, "median_us"], 0), "/candidates/0/median_us: 0.0 is not a time"),
        (edit([*CANDIDATE, "median_us"], None), "/candidates/0: has neither median_us, nor wrong, nor reason"),
        (edit([*CANDIDATE, "spread_us"], -1.0), "/candidates/0/spread_us: -1.0 is not"),
        (edit([*CANDIDATE, "repetitions"], 0), "/candidates/0/repetitions: 0 repetitions cannot have a median"),
        (edit([*CANDIDATE, "reason"], "it cannot"), "/candidates/0/reason: the candidate has a time"),
        (edit([*CANDIDATE, "reason"], "x" * 5000), "/candidates/0/reason: Expected `str` of length <= 4096"),
        (lambda document: document["operations"].append(document["operations"][0]), "/operations/2: has the same op"),
        (
            lambda document: document["operations"][0]["layouts"].append(document["operations"][0]["layouts"][0]),
            "/operations/0/layouts/2: has the same ranks and hosts as /operations/0/layouts/0: (2, 1)",
        ),
    ],
)
def test_t4_a_wrong_table_is_one_error_that_names_file_and_place(tmp_path, document, change, text):
    change(document)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidArgumentError) as raised:
        load(path)
    message = str(raised.value)
    assert message.startswith(f"tuning table {path}: ") and message.isprintable() and len(message) < 700
    assert text in message


@pytest.mark.parametrize(
    "literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "0x10", '"3"', "[]"]
)
def test_t4_a_number_that_is_none_is_an_error(document, literal):
    document["operations"][0]["layouts"][0]["sizes"][0]["candidates"][0]["median_us"] = "HERE"
    with pytest.raises(ValueError, match=r"is not JSON|/median_us: "):
        decode(json.dumps(document).replace('"HERE"', literal).encode())


@pytest.mark.parametrize("cut", [1, 10, 100, 500, -1, -2, -30])
def test_t4_a_truncated_table_is_an_error(cut):
    contents = encode(make_table(SHORT)).rstrip()
    with pytest.raises(ValueError, match="is not JSON"):
        decode(contents[:cut])


@pytest.mark.parametrize(
    "contents",
    [
        b'{"format": ' + b"[" + b"[],[]," * 2_700_000 + b"[]]}",
        b'{"format": "horocache.tuning", "version": 1, "operations": [' + b"{}," * 5_000_000 + b"{}]}",
        b'{"format": "horocache.tuning", "version": 1, "zz": "' + b"x" * 16_000_000 + b'"}',
    ],
)
def test_t4_a_large_hostile_file_takes_bounded_memory(tmp_path, contents):
    assert len(contents) < tables.MAX_FILE_BYTES
    path = tmp_path / "t.json"
    path.write_bytes(contents)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError) as raised:
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * tables.MAX_FILE_BYTES
    finally:
        tracemalloc.stop()
    assert len(str(raised.value)) < 700


# ---- mutations


def mutated(contents: bytes, seed: int) -> bytes:
    """Damage a file: bytes, numbers, or parts of the document, drawn by the seed."""
    rng = random.Random(seed)
    if rng.random() < 0.4:
        data = bytearray(contents)
        for _ in range(rng.randint(1, 4)):
            place, action = rng.randrange(len(data) or 1), rng.randrange(3)
            if action == 0:
                data[place : place + 1] = bytes([rng.randrange(256)])
            elif action == 1:
                del data[place : place + rng.randint(1, 40)]
            else:
                data[place:place] = data[: rng.randint(1, 60)]
        return bytes(data)
    document = json.loads(contents)
    for _ in range(rng.randint(1, 3)):
        _mutate(document, rng)
    return json.dumps(document).encode()


def _mutate(document, rng) -> None:
    places = []
    stack = [document]
    while stack:
        here = stack.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here))
        places += [(here, key) for key in keys]
        stack += [here[key] for key in keys if isinstance(here[key], dict | list)]
    here, key = rng.choice(places)
    junk = [None, True, -1, 0, 1, 2, 1 << 31, 1 << 64, 0.5, 1e308, -0.0, "", "shm", "\x1b[0m", "shm/auto", [], {}, [{}]]
    other, other_key = rng.choice(places)
    action = rng.randrange(4)
    if action == 0:
        here[key] = rng.choice(junk)
    elif action == 1:
        here[key] = json.loads(json.dumps(other[other_key]))
    elif action == 2:
        del here[key]
    elif isinstance(here, list):
        here.append(json.loads(json.dumps(here[key])))
    else:
        here[f"{key}_"] = here[key]


def test_t4_a_damaged_table_is_refused_or_read_as_a_correct_one():
    contents = encode(make_table(SHORT, failures=(Failure(8, 2, "why"),)))
    accepted = 0
    for seed in range(FIRST, FIRST + MUTATIONS):
        damaged = mutated(contents, seed)
        try:
            table = decode(damaged)
        except ValueError as error:
            assert str(error), seed
            continue
        except Exception as error:
            pytest.fail(f"mutation {seed} raised {error!r}")
        accepted += 1
        check_usable(table, seed)
    assert 0 < accepted < MUTATIONS


def check_usable(table: Table, seed: int) -> None:
    rules = rules_of(table)
    assert all(str(rule).isprintable() and str(rule).count("=") == 1 and ";" not in str(rule) for rule in rules), seed
    for measurements in table.operations:
        for layout in measurements.layouts:
            world = World(layout.ranks, layout.hosts)
            found = candidates_for(table, measurements.op, world, 100)
            assert found or not bands_of(measurements.op, layout), seed
    assert decode(encode(table)) == canonical(table), seed
