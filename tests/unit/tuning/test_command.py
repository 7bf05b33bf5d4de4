"""``horocache tune``: arguments, dry runs, tables that are shown and drawn; each mistake is one line."""

from __future__ import annotations

import json

import pytest

from horocache.cli import entry_point
from horocache.tuning.table import encode, load, save

from .tables import CANNOT, WRONG, make_table

SHORT = {
    "allreduce": {
        (2, 1): {1024: {"shm/oneshot": 10, "shm/twoshot": 20}, 65536: {"shm/oneshot": 90, "shm/twoshot": 60}},
        (4, 2): {1024: {"mpi/fold": 200.5, "mpi/native": WRONG, "mpi/twolevel": CANNOT}},
    },
    "allgather": {(2, 1): {1024: {"shm/auto": 15}}},
}


def run(capsys, *arguments):
    code = entry_point.main(["tune", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def path(tmp_path):
    save(make_table(SHORT), tmp_path / "t.json")
    return tmp_path / "t.json"


def test_a_table_is_shown_with_its_rules(capsys, path):
    code, out, err = run(capsys, "show", path)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "allreduce 2 1 1K shm/oneshot 10.0 0.5 shm/twoshot 20.0" in lines
    assert "allreduce 2 1 64K shm/twoshot 60.0 0.5 shm/oneshot 90.0" in lines
    assert "allreduce 4 2 1K mpi/fold 200.5 0.5 1 wrong, 1 cannot" in lines
    assert lines[lines.index("Selector rules:") + 1 :] == [
        "allreduce,cpu,2-ranks,1hosts:0-8192=shm/oneshot",
        "allreduce,cpu,2-ranks,1hosts:0-8192=shm/twoshot",
        "allreduce,cpu,2-ranks,1hosts:8192-=shm/twoshot",
        "allreduce,cpu,2-ranks,1hosts:8192-=shm/oneshot",
        "allreduce,cpu,2-ranks,2-hosts=mpi/fold",
        "allgather,cpu,2-ranks,1hosts=shm/auto",
    ]


def test_a_table_without_measurements_is_shown(capsys, tmp_path):
    save(make_table({}), tmp_path / "t.json")
    code, out, _ = run(capsys, "show", tmp_path / "t.json")
    assert code == 0 and "No selector rules follow." in out


def test_a_table_is_drawn_into_a_png_file(capsys, path, tmp_path):
    pytest.importorskip("matplotlib")
    png = tmp_path / "t.png"
    assert run(capsys, "draw", path, png) == (0, f"wrote {png}\n", "")
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_texts_of_a_table_are_drawn_as_they_are(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    save(make_table(SHORT, horocache="$\\frac{"), tmp_path / "t.json")
    assert run(capsys, "draw", tmp_path / "t.json", tmp_path / "t.png")[0] == 0


def test_a_table_without_times_is_not_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    save(make_table({"reduce": {(2, 1): {64: {"A": WRONG}}}}), tmp_path / "t.json")
    code, _, err = run(capsys, "draw", tmp_path / "t.json", tmp_path / "t.png")
    assert (code, err) == (1, "horocache: the table has no times to draw\n")


def test_a_dry_run_lists_the_jobs_and_measures_nothing(capsys, tmp_path):
    arguments = ["--ops", "all_reduce", "--sizes", "1K:64K:x4", "--worlds", "2,4", "--layouts", "1,2x2", "--dry-run"]
    code, out, err = run(capsys, *arguments, "--out", tmp_path / "t.json", "--budget", "3")
    assert (code, err) == (0, "") and not (tmp_path / "t.json").exists()
    lines = out.splitlines()
    assert lines[0].startswith("2 ranks on 1 host, by horocacherun: allreduce of 1K, 64K, 4K bytes; about ")
    assert lines[1].startswith("4 ranks on 2 hosts, by mpiexec: allreduce of 1K, 64K, 4K bytes; about ")
    assert lines[5].startswith("4 ranks on 1 host, by horocacherun: allreduce of 16K bytes; about ")
    assert "of a budget of 3 s; the budget cuts that" in lines[6]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ops", "allsum"], "'allsum' is not an operation"),
        (["--sizes", "1K:4K:y2"], "'1K:4K:y2' is not a range of sizes"),
        (["--sizes", "\x1b[31m"], r"'\x1b[31m' is not a size"),
        (["--sizes", "1T"], "'1T' is not a size"),
        (["--sizes", "512G"], "which is more than half of the memory here"),
        (["--worlds", "1"], "'1' is not a number of ranks from 2"),
        (["--layouts", "2y2"], "'2y2' is not a layout"),
        (["--layouts", "2x2", "--worlds", "x"], "'x' is not a number of ranks"),
        (["--backends", "shm;mpi"], "'shm;mpi' is not the name of a backend"),
        (["--repeat", "0"], "'0' is not a whole number from 1"),
        (["--overlap", "65"], "'65' is not a whole number from 1 to 64"),
        (["--overlap", "9" * 5000], "is not a whole number"),
        (["--budget", "nan"], "'nan' is not a number of seconds"),
        (["--budget", "-1"], "'-1' is not a number of seconds"),
        (["--budget", "inf"], "'inf' is not a number of seconds"),
        (["--out", "/"], "--out /: it is a folder; name a file"),
        (["--out", "x" * 300], ": File name too long"),
        (["--out", "none/t.json"], "--out none/t.json: the folder "),
        (["--out", "t.json", "--draw", "none/t.png"], "--draw none/t.png: the folder "),
        ([], "where to? Name the table with --out FILE"),
        (["shov"], "invalid choice: 'shov'"),
        (["show"], "the following arguments are required: FILE"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(capsys, arguments, text):
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert text in err


@pytest.mark.parametrize("what", [["show"], ["draw", "x.png"]])
def test_a_file_that_is_not_a_table_is_one_line(capsys, tmp_path, what):
    (tmp_path / "t.json").write_text("{}")
    code, out, err = run(capsys, what[0], tmp_path / "t.json", *what[1:])
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"tuning table {tmp_path}/t.json: /format: null; a tuning table's is" in err


def test_a_table_of_another_host_is_not_resumed(capsys, path):
    before = path.read_bytes()
    code, out, err = run(capsys, "--resume", "--out", path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"--resume {path}: its measurements cannot be compared with new ones" in err
    assert path.read_bytes() == before


def test_a_damaged_table_is_not_resumed_and_stays(capsys, path):
    document = json.loads(path.read_text())
    document["operations"][0]["op"] = "allsum"
    path.write_text(json.dumps(document))
    code, _, err = run(capsys, "--resume", "--out", path)
    assert code == 1 and "/operations/0/op: Invalid enum value 'allsum'" in err
    assert json.loads(path.read_text()) == document


def test_a_shown_table_is_the_written_one(path):
    assert encode(load(path)) == path.read_bytes()
