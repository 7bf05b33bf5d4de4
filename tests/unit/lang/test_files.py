"""Programs in files: a saved program is loaded unchanged, and a wrong file raises an error.

HC_TEST_MUTATIONS is the number of damaged files, and HC_TEST_FIRST_MUTATION the number of the first one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random

import msgspec
import pytest

from horocache.lang import (
    CompiledProgram,
    ProgramFileError,
    algorithms,
    compile_program,
    load_program,
    save_program,
    verify,
)
from horocache.lang.formats.program_json import decode, encode, hash_of
from horocache.lang.program.collective_spec import collective_of

from .random_programs import random_program

MUTATIONS = int(os.environ.get("HC_TEST_MUTATIONS", "300"))
FIRST = int(os.environ.get("HC_TEST_FIRST_MUTATION", "0"))


@pytest.fixture(scope="module")
def ring():
    return compile_program(algorithms.ring(3))


def with_hash(document: dict) -> bytes:
    """The contents of a file, with the right hash if the program can be converted."""
    with contextlib.suppress(msgspec.ValidationError):
        document["hash"] = hash_of(msgspec.convert(document["program"], CompiledProgram))
    return json.dumps(document).encode()


@pytest.mark.parametrize("seed", range(0, 60, 7))
def test_a_saved_program_is_loaded_unchanged(tmp_path, seed):
    program = compile_program(random_program(seed))
    save_program(program, tmp_path / "a.program.json")
    assert load_program(tmp_path / "a.program.json") == program
    assert [path.name for path in tmp_path.iterdir()] == ["a.program.json"]


def test_a_file_has_the_same_bytes_every_time(ring):
    assert encode(ring) == encode(decode(encode(ring)))


def test_the_reader_computes_which_steps_finish_sums(ring):
    document = json.loads(encode(ring))
    steps = [
        step
        for one in document["program"]["programs"]
        for thread_block in one["thread_blocks"]
        for step in thread_block["steps"]
    ]
    finishing = [step for step in steps if step.get("finishes")]
    assert len(finishing) == 3 and all(step["op"].startswith("rr") for step in finishing)
    for step in steps:
        step["finishes"] = not step.get("finishes", False)
    assert decode(with_hash(document)) == ring


# ---- paths without a program file


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
        (lambda path: path.write_bytes(b"{}"), "/format: 'None'"),
    ],
)
def test_a_path_without_a_program_raises_with_its_name(tmp_path, make, text):
    path = tmp_path / "x.program.json"
    make(path)
    with pytest.raises(ProgramFileError) as raised:
        load_program(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert text in str(raised.value)


def test_a_file_without_read_permission_raises_with_its_name(ring, tmp_path):
    path = tmp_path / "x.program.json"
    save_program(ring, path)
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(ProgramFileError, match="cannot be opened: Permission denied"):
            load_program(path)
    finally:
        os.seteuid(user)


# ---- files that are wrong


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


STEP = ("program", "programs", 0, "thread_blocks", 0, "steps", 0)
THREAD_BLOCK = STEP[:5]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (edit(["version"], 3), "/version: 3; this horocache reads 2"),
        (edit(["format"], "xml"), "/format: 'xml'"),
        (edit(["hash"], "sha256:0"), "/hash: the contents have sha256:"),
        (edit(["program", "name"], None), "missing required field `name`"),
        (edit(["program", "rank"], 3), "unknown field `rank`"),
        (edit(["program", "ranks"], 2), "/program/programs: 3 of them, for 2 ranks"),
        (edit(["program", "ranks"], 10**9), "/program/ranks: 1000000000 is not from 1 to"),
        (edit(["program", "ranks"], -3), "/program/ranks: -3"),
        (edit(["program", "refinement"], 10**9), "/program/refinement: 1000000000"),
        (edit(["program", "min_slots"], 9), "/program/min_slots: 9"),
        (edit(["program", "slots"], -1), "/program/slots: -1"),
        (edit(["program", "protocol"], "Fast"), "/program/protocol: Invalid enum value 'Fast'"),
        (edit(["program", "min_bytes"], -5), "/program/min_bytes: -5 to 0"),
        (edit(["program", "rank_order"], True), "/program/rank_order: is true, but sums are not folded in rank order"),
        (edit(["program", "collective", "name"], "alltoall"), "does not implement alltoall"),
        (edit(["program", "collective", "name"], "other"), "/program/collective/inputs: 0 entries for 3 ranks"),
        (edit(["program", "collective", "chunk_factor"], 2), "outside of"),
        (edit(["program", "collective", "root"], 1), "/program/collective/root: allreduce has none"),
        (edit([*STEP, "op"], "jump"), "/program/programs/0/thread_blocks/0/steps/0/op: Invalid enum value 'jump'"),
        (edit([*STEP, "op"], None), "missing required field `op`"),
        (edit([*STEP, "op"], "r"), "/program/programs/0/thread_blocks/0/steps/0/source: given for r"),
        (edit([*STEP, "count"], 0), "/program/programs/0/thread_blocks/0/steps/0/count: 0"),
        (edit([*STEP, "count"], 2**40), "/program/programs/0/thread_blocks/0/steps/0/count: 1099511627776"),
        (edit([*STEP, "count"], 10**40), "/program/programs/0/thread_blocks/0/steps/0/count"),
        (edit([*STEP, "count"], 1.5), "/program/programs/0/thread_blocks/0/steps/0/count: Expected `int`, got `float`"),
        (edit([*STEP, "count"], "1"), "/program/programs/0/thread_blocks/0/steps/0/count: Expected `int`, got `str`"),
        (edit([*STEP, "count"], float("nan")), "is not JSON"),
        (edit([*STEP, "count"], float("-inf")), "is not JSON"),
        (edit([*STEP, "source"], ["input", 3]), "/source/1: 3 and 1 chunks are outside of input's 3"),
        (edit([*STEP, "source"], ["input", -1]), "/source/1: -1"),
        (edit([*STEP, "source"], ["nothing", 0]), "/source/0: there is no buffer 'nothing'"),
        (edit([*STEP, "waits"], [[7, 0]]), "/waits/0/0: 7 is not from 0 to 0"),
        (edit([*STEP, "waits"], [[0, 0]]), "/waits/0: a step waits for its own thread block"),
        (
            edit([*THREAD_BLOCK, "send"], 0),
            "/program/programs/0/thread_blocks/0/send: rank 0 has no connection with itself",
        ),
        (edit([*THREAD_BLOCK, "send"], 3), "/program/programs/0/thread_blocks/0/send: 3 is not from -1 to 2"),
        (edit([*THREAD_BLOCK, "channel"], 5), "on channel 5 no thread block receives"),
        (edit([*THREAD_BLOCK, "steps"], []), "/program/programs/0/thread_blocks/0/steps: there are none"),
        (edit(["program", "programs", 0, "scratch"], {"input": 1}), "'input' is not the name of a scratch buffer"),
        (edit(["program", "programs", 0, "scratch"], {"s": 10**12}), "/scratch/s: 1000000000000"),
    ],
)
def test_a_wrong_value_raises_with_its_place(ring, change, text):
    document = json.loads(encode(ring))
    keep = document["hash"]
    change(document)
    contents = json.dumps(document).encode() if document.get("hash") != keep else with_hash(document)
    with pytest.raises(ProgramFileError) as raised:
        decode(contents)
    assert text in str(raised.value)


def test_two_thread_blocks_on_one_connection_raise(ring):
    document = json.loads(encode(ring))
    thread_blocks = document["program"]["programs"][0]["thread_blocks"]
    thread_blocks.append(thread_blocks[0])
    with pytest.raises(ProgramFileError, match="is the connection of /program/programs/0/thread_blocks/0 too"):
        decode(with_hash(document))


def test_a_cycle_of_waits_raises(ring):
    document = json.loads(encode(ring))
    for one in document["program"]["programs"]:
        one["thread_blocks"][0]["steps"].reverse()
    with pytest.raises(ProgramFileError, match="wait for"):
        decode(with_hash(document))


def test_a_million_steps_raise_at_once(ring):
    document = json.loads(encode(ring))
    steps = document["program"]["programs"][0]["thread_blocks"][0]["steps"]
    step = json.dumps(steps[0])
    steps.append("more")
    contents = json.dumps(document).replace('"more"', ", ".join([step] * 10**6))
    with pytest.raises(ProgramFileError, match="1000015 steps; 500000 are allowed"):
        decode(contents.encode(), expect_hash=False)


def test_very_many_chunks_raise_at_once(ring):
    document = json.loads(encode(ring))
    document["program"]["refinement"] = 1024
    document["program"]["collective"]["chunk_factor"] = 1 << 20
    with pytest.raises(ProgramFileError, match="not from 0 to 16777216"):
        decode(with_hash(document))


def test_an_edited_file_is_read_without_its_hash(ring):
    document = json.loads(encode(ring))
    document["program"]["name"] = "edited"
    contents = json.dumps(document).encode()
    with pytest.raises(ProgramFileError, match="--rehash"):
        decode(contents)
    assert decode(contents, expect_hash=False).name == "edited"


# ---- files that were damaged by chance


def _mutated(contents: bytes, rng: random.Random) -> bytes:
    data = bytearray(contents)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randint(1, 20)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randint(1, 40)]
        elif kind == 3:
            data = data[:at] or data[:1]
        else:
            numbers = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
            if numbers:
                where = rng.choice(numbers)
                data[where : where + 1] = rng.choice((b"0", b"1", b"7", b"-1", b"99999999999", b"1e9", b"null", b'"x"'))
        if not data:
            return b""
    return bytes(data)


def test_damaged_files_raise_or_are_correct():
    files = [encode(compile_program(random_program(seed))) for seed in range(50)]
    accepted = 0
    for seed in range(FIRST, FIRST + MUTATIONS):
        try:
            program = decode(_mutated(files[seed % 50], random.Random(seed)), expect_hash=False)
        except ProgramFileError:
            continue
        verify(program, collective_of(program.collective, program.ranks))
        accepted += 1
    assert accepted < MUTATIONS / 4
