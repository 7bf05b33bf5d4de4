"""``horocache lang``: programs are compiled, checked, drawn, run, tuned, imported, exported; errors are one line."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET

import pytest

from horocache.cli import entry_point
from horocache.lang import load_program

OWN = """
from horocache.lang import AllGather, Buffer, Custom, Program, chunk


def gather(ranks, **options):
    with Program("mine", AllGather(ranks, 1, inplace=True), **options) as program:
        for source in range(ranks):
            for target in range(ranks):
                chunk(source, Buffer.input, 0).copy(target, Buffer.output, source)
    return program


def wrong(ranks):
    with Program("wrong", AllGather(ranks, 1)) as program:
        pass
    return program


def nothing():
    return 3


def halves(ranks):
    # The second rank gets the first halves of the first two.
    return Custom("halves", ranks, 2, 2, lambda rank, chunk: [(chunk, 0)] if rank == 1 else None)


def gather_halves(ranks):
    with Program("halves", halves(ranks)) as program:
        for rank in range(2):
            chunk(rank, Buffer.input, 0).copy(1, Buffer.output, rank)
    return program
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def run(capsys, *arguments):
    code = entry_point.main(["lang", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_an_algorithm_of_the_library_is_compiled_and_checked(capsys, tmp_path):
    path = tmp_path / "ring.program.json"
    code, out, _ = run(capsys, "compile", "ring", 4, "--instances", 2, "--max-bytes", 65536, "-o", path)
    assert code == 0
    assert out == (
        f"{path}: allreduce by ring, 4 ranks, 56 steps, up to 2 thread blocks a rank, 1 slot, not in rank order\n"
    )
    assert load_program(path).max_bytes == 65536
    assert run(capsys, "check", path) == (0, out, "")


def test_a_function_of_a_users_file_is_compiled(capsys, own, tmp_path):
    path = tmp_path / "own.program.json"
    assert run(capsys, "compile", f"{own}:gather", 3, "--protocol", "LL", "-o", path)[0] == 0
    assert load_program(path).protocol == "LL"


@pytest.mark.parametrize(
    ("source", "numbers", "text"),
    [
        ("nothing", [], "'nothing' is neither a Python file nor an algorithm; the algorithms are all_pairs,"),
        ("ring", [], "missing a required argument: 'ranks'"),
        ("hierarchical", [2], "missing a required argument: 'per_host'"),
        ("missing.py", [], "missing.py: there is no such file"),
        ("OWN:other", [], "has no function 'other'"),
        ("OWN:nothing", [], "returned int, and not a program"),
        ("OWN", [], "has 0 programs; name a function"),
    ],
)
def test_a_source_that_cannot_be_compiled_is_one_line(capsys, own, tmp_path, source, numbers, text):
    code, out, err = run(capsys, "compile", source.replace("OWN", str(own)), *numbers, "-o", tmp_path / "x")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert text in err
    assert not (tmp_path / "x").exists()


def test_a_wrong_program_is_not_written(capsys, own, tmp_path):
    code, _, err = run(capsys, "compile", f"{own}:wrong", 2, "-o", tmp_path / "x")
    assert code == 1
    assert "PostconditionError" in err and "output[0] of rank 0: expected a0[0], got nothing" in err
    assert not (tmp_path / "x").exists()


def test_wrong_files_are_named_and_the_other_files_are_checked(capsys, tmp_path):
    good, bad = tmp_path / "good.program.json", tmp_path / "bad.program.json"
    run(capsys, "compile", "all_pairs", 2, "-o", good)
    document = json.loads(good.read_text())
    document["program"]["name"] = "other"
    bad.write_text(json.dumps(document))
    code, out, err = run(capsys, "check", bad, good, tmp_path / "none")
    assert code == 1
    assert (
        out
        == f"{good}: allreduce by all_pairs, 2 ranks, 9 steps, up to 2 thread blocks a rank, 1 slot, in rank order\n"
    )
    first, second = err.splitlines()
    assert first.startswith(f"{bad}: /hash: ")
    assert second.startswith(f"{tmp_path / 'none'}: cannot be opened")
    assert run(capsys, "check", "--rehash", bad)[0] == 0
    assert load_program(bad).name == "other"


def test_a_program_is_drawn_and_described(capsys, tmp_path):
    path = tmp_path / "tree.svg"
    assert run(capsys, "show", "binary_tree", 3, "-o", path)[0] == 0
    root = ET.parse(path).getroot()
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "binary_tree: allreduce, 3 ranks" in texts
    assert "input[0]@0 += input[0]@2" in texts
    assert any(text.startswith("rrcs ") for text in texts)
    code, out, _ = run(capsys, "show", "ring", 2)
    assert code == 0
    assert out.splitlines()[2:4] == ["  thread block 0: from 1, to 1, channel 0", "    0: s from input[1:2]"]


def test_the_drawing_of_a_file_has_no_written_operations(capsys, tmp_path):
    path, drawing = tmp_path / "a.program.json", tmp_path / "a.svg"
    run(capsys, "compile", "ring", 3, "-o", path)
    assert run(capsys, "show", path, "-o", drawing)[0] == 0
    assert "as they were written" not in drawing.read_text()


def test_xml_is_exported_and_imported(capsys, tmp_path):
    xml, path = tmp_path / "a.xml", tmp_path / "a.program.json"
    code, out, _ = run(capsys, "export", "ring", 3)
    assert code == 0 and ET.fromstring(out).get("ngpus") == "3"
    assert run(capsys, "export", "ring", 3, "-o", xml)[0] == 0
    assert xml.read_text() == out
    assert run(capsys, "import", xml, "-o", path)[0] == 0
    assert load_program(path).ranks == 3


def test_xml_of_a_users_collective_is_imported_with_that_collective(capsys, own, tmp_path):
    xml, path = tmp_path / "a.xml", tmp_path / "a.program.json"
    assert run(capsys, "export", f"{own}:gather_halves", 3, "-o", xml)[0] == 0
    code, _, err = run(capsys, "import", xml, "-o", path)
    assert code == 1 and "'halves' is not known; give the collective" in err and not path.exists()
    assert run(capsys, "import", xml, "-o", path, "--collective", f"{own}:halves", 3)[0] == 0
    assert load_program(path).collective.name == "halves"
    for given, text in (
        (["halves"], "'halves' names no function that returns a collective"),
        ([f"{own}:halves", "three"], "'three' are not whole numbers"),
        ([f"{own}:nothing"], "nothing returned int, and not a collective"),
        ([f"{own}:halves", 2], "/algo/gpu: the ids are not 0 to 1"),
    ):
        code, _, err = run(capsys, "import", xml, "-o", tmp_path / "x", "--collective", *given)
        assert code == 1 and text in err and err.count("\n") == 1
        assert not (tmp_path / "x").exists()


def test_the_export_warns_of_thread_blocks_that_are_too_long_for_the_runtimes(capsys):
    code, _, err = run(capsys, "export", "ring", 40)
    assert code == 0
    assert err == "horocache: warning: 79 steps of a thread block; the runtimes have room for 64\n"


def test_wrong_xml_is_one_line(capsys, tmp_path):
    xml = tmp_path / "a.xml"
    xml.write_text("<algo>")
    code, _, err = run(capsys, "import", xml, "-o", tmp_path / "x")
    assert (code, err.count("\n")) == (1, 1)
    assert f"{xml}: is not XML" in err


def test_a_program_is_run_checked_and_timed(capsys, own):
    code, out, _ = run(capsys, "run", f"{own}:gather", 3, "--bytes", "4k", "--repetitions", 2)
    assert code == 0
    assert re.fullmatch(r"mine: 3 ranks, 1024 x float32: results are right; [\d.]+ us \([\d.]+ to [\d.]+\)\n", out), out
    machine = "1x3,inside=10/1,between=10/1"
    code, out, _ = run(capsys, "run", "ring", 3, "--bytes", 300, "--repetitions", 1, "--machine", machine)
    assert code == 0 and re.search(r"; the cost model says [\d.]+ us$", out), out
    code, out, _ = run(capsys, "run", "ring", 3, "--bytes", 300, "--seed", 5, "--dtype", "int64")
    assert (code, out) == (0, "ring: 3 ranks, 37 x int64: results are right\n")


def test_tuning_writes_ranges_that_cover_all_sizes(capsys, tmp_path):
    machine = "2x4,inside=1/20,between=20/1"
    limits = ("--from", "1k", "--to", "4m", "--instances", 1, "--machine", machine, "--predict")
    code, out, _ = run(capsys, "tune", "allreduce", 8, "-o", tmp_path, *limits)
    assert code == 0
    folder = tmp_path / "8ranks"
    programs = sorted((load_program(path) for path in folder.glob("*.json")), key=lambda one: one.min_bytes)
    assert len(programs) > 1, out
    assert programs[0].min_bytes == 0 and programs[-1].max_bytes == 0
    for before, after in itertools.pairwise(programs):
        assert before.max_bytes == after.min_bytes
    written = sorted(path.name for path in folder.iterdir())
    code, _, _ = run(capsys, "tune", "allreduce", 8, "-o", tmp_path, *limits)
    assert (code, sorted(path.name for path in folder.iterdir())) == (0, written), "tune did not replace its own files"
    mine = folder / "allreduce-8ranks-0-mine.program.json"
    mine.write_text("mine")
    code, out, err = run(capsys, "tune", "allreduce", 8, "-o", tmp_path, *limits)
    assert (code, out) == (1, "") and "that tune has not written: allreduce-8ranks-0-mine.program.json" in err
    assert mine.read_text() == "mine" and set(written) < {path.name for path in folder.iterdir()}


def test_tuning_measures_and_checks_on_this_machine(capsys, tmp_path):
    limits = ("--from", "1k", "--to", "1k", "--instances", 1, "--repetitions", 1)
    code, out, _ = run(capsys, "tune", "alltoall", 2, "-o", tmp_path, *limits)
    assert code == 0
    [path] = (tmp_path / "2ranks").glob("*.json")
    assert str(path) in out and load_program(path).collective.name == "alltoall"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("tune", "allgather", 4, "-o", "x"), "the library has no algorithm for allgather on 4 ranks"),
        (("tune", "allreduce", 4, "-o", "x", "--predict"), "--predict needs --machine"),
        (("run", "ring", 4, "--machine", "fast"), "'fast' is not a machine"),
        (("run", "ring", 4, "--dtype", "text"), "dtype='text'"),
    ],
)
def test_mistakes_in_running_and_tuning_are_one_line(capsys, arguments, why):
    code, out, err = run(capsys, *arguments)
    assert code != 0 and out == ""
    assert why in err and len(err.splitlines()) == 1, err
