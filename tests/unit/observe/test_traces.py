"""Timelines are read, merged and broken down; the files are small and made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from horocache.cli.entry_point import main
from horocache.errors import InvalidArgumentError
from horocache.observe.breakdown import break_down
from horocache.observe.trace import load, load_all, merge, paths_of_ranks


def operation(row, submitted, agreed, ended, *, sequence=0, started=None):
    """The events of an allreduce; times in us."""
    started = agreed if started is None else started
    span = {"ph": "X", "pid": 0, "tid": row}
    args = {"process_set": 0, "tensors": 1, "bytes": 4, "sequence": sequence, "item": 0, "fused": 1, "backend": "shm"}
    return [
        {**span, "name": "NEGOTIATE_ALLREDUCE", "cat": "control", "ts": submitted, "dur": agreed - submitted},
        {**span, "name": "ALLREDUCE", "cat": "operation", "ts": agreed, "dur": ended - agreed, "args": args},
        {**span, "name": "QUEUE", "cat": "queue", "ts": agreed, "dur": started - agreed},
        {**span, "name": "SHM_ALLREDUCE", "cat": "collective", "ts": started, "dur": ended - started},
    ]


def write(path: Path, rank, events, *, size=2, offset_ns=0, error_ns=0, measured_ns=0):
    header = {"version": "1", "rank": rank, "size": size, "host": "a"}
    header |= {"clock_offset_ns": offset_ns, "clock_error_ns": error_ns, "clock_measured_ns": measured_ns}
    rows = sorted({event["tid"] for event in events if "tid" in event})
    named = [{"ph": "M", "name": "thread_name", "pid": rank, "tid": r, "args": {"name": f"t{r}"}} for r in rows]
    path.write_text(json.dumps([{"ph": "M", "name": "horocache", "args": header}, *named, *events]))
    return path


@pytest.fixture
def files(tmp_path):
    """Rank 0 submits 30 us after rank 1; rank 1's clock is 1,000 us behind."""
    first = write(tmp_path / "t.json", 0, operation(1, 130, 150, 200, started=160))
    write(
        tmp_path / "t.rank1.json", 1, operation(1, -900, -848, -790, started=-830), offset_ns=1_000_000, error_ns=5_000
    )
    (tmp_path / "t.rankx.json").write_text("another program's")
    return first


def test_the_files_of_all_ranks_are_found_and_their_clocks_aligned(files):
    assert [path.name for path in paths_of_ranks(files)] == ["t.json", "t.rank1.json"]
    first, second = load_all([files])
    assert [span.begin for span in first.spans] == [130, 150, 150, 160]
    assert [span.begin for span in second.spans] == [100, 152, 152, 170]
    assert first.clock_error_us == 0 and second.clock_error_us == pytest.approx(5, abs=0.1)
    assert first.rows == {1: "t1"}


def test_the_clock_error_grows_with_the_time_since_the_clocks_were_compared(tmp_path):
    late = write(tmp_path / "t.json", 0, operation(1, 0, 1, 10e6), error_ns=1_000)
    assert load(late).clock_error_us == pytest.approx(1 + 10e6 * 1e-4)


def test_a_merged_trace_begins_at_zero_and_has_an_arrow_through_each_operation(files):
    merged = merge(load_all([files]))
    spans = [event for event in merged["traceEvents"] if event["ph"] == "X"]
    assert min(event["ts"] for event in spans) == 0 and len(spans) == 8
    arrows = [event for event in merged["traceEvents"] if event["ph"] in "stf"]
    assert [(event["ph"], event["pid"], event["ts"]) for event in arrows] == [("s", 0, 50), ("f", 1, 52)]
    assert len({event["id"] for event in arrows}) == 1
    assert merged["otherData"]["clock_error_us"] == pytest.approx(5, abs=0.1)


def test_the_breakdown_divides_the_time_of_each_rank_into_parts(files):
    found = break_down(load_all([files]))
    first, second = found.ranks
    # Rank 0 was last, so all of its negotiation is coordination. Rank 1 waited for it from 100 to 130.
    assert {part: round(ms * 1e3, 3) for part, ms in first.parts.items() if ms} == {
        "collective": 40,
        "queue": 10,
        "coordination": 20,
    }
    assert {part: round(ms * 1e3, 3) for part, ms in second.parts.items() if ms} == {
        "collective": 40,
        "queue": 18,
        "coordination": 22,
        "wait for others": 30,
    }
    assert first.total == pytest.approx(0.07) and second.total == pytest.approx(0.11)
    assert first.nothing == pytest.approx(0) and first.operations == 1
    assert [(late.rank, late.operations) for late in found.latecomers] == [(0, 1)]
    assert found.latecomers[0].waited == pytest.approx(0.03)
    assert found.steps == 1


def test_overlapping_waits_for_one_rank_count_once(tmp_path):
    late = [*operation(1, 50, 60, 70), *operation(2, 55, 60, 70, sequence=1)]
    early = [*operation(1, 10, 60, 70), *operation(2, 20, 60, 70, sequence=1)]
    write(tmp_path / "t.rank1.json", 1, late)
    (first,) = break_down(load_all([write(tmp_path / "t.json", 0, early)])).latecomers
    assert (first.rank, first.operations) == (1, 2) and first.waited == pytest.approx(0.045)  # 10 to 55


def test_overlapping_operations_count_once(tmp_path):
    events = [*operation(1, 0, 10, 30), *operation(2, 5, 20, 40, sequence=1), *operation(1, 100, 110, 120, sequence=2)]
    (times,) = break_down([load(write(tmp_path / "t.json", 0, events, size=1))]).ranks
    assert times.total == pytest.approx(0.12)
    assert times.parts["collective"] == pytest.approx(0.04)  # 10 to 40, 110 to 120
    assert times.parts["coordination"] == pytest.approx(0.02)  # 0 to 10, 100 to 110
    assert times.nothing == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2", "cannot be read as a timeline: JSONDecodeError"),
        ("{}", "holds no list of events"),
        ("[1]", "holds no list of events"),
        ("[]", "is not a timeline of horocache"),
        ('[{"name": "horocache"}]', "KeyError"),
        ('[{"name": "horocache", "args": 3}]', "TypeError"),
        ("[" * 100_000, "cannot be read as a timeline"),
        ('[{"name": "horocache", "args": {"clock_offset_ns": "x"}}]', "ValueError"),
    ],
)
def test_an_invalid_timeline_is_an_error_that_names_the_file(tmp_path, text, words, capsys):
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"x\.json") as failed:
        load_all([file])
    assert words in str(failed.value)
    assert main(["timeline", "summary", str(file)]) == 2 and words in capsys.readouterr().err


def test_timelines_of_different_jobs_raise(tmp_path):
    one = write(tmp_path / "a.json", 0, operation(1, 0, 1, 2))
    same = write(tmp_path / "b.json", 0, operation(1, 0, 1, 2))
    other = write(tmp_path / "c.json", 1, operation(1, 0, 1, 2), size=3)
    with pytest.raises(InvalidArgumentError, match="are both of rank 0"):
        load_all([one, same])
    with pytest.raises(InvalidArgumentError, match=r"of a job of 2 ranks, .* of one of 3"):
        load_all([one, other])
    with pytest.raises(InvalidArgumentError, match="there is no timeline"):
        load_all([tmp_path / "nothing.json"])


def test_the_command_merges_summarises_and_breaks_down_timelines(files, capsys):
    assert main(["timeline", "merge", str(files)]) == 0
    assert "2 ranks; times of two ranks are at most 5" in capsys.readouterr().out
    merged = json.loads(files.with_name("t.merged.json").read_text())
    assert len(merged["traceEvents"]) > 8
    assert main(["timeline", "merge", str(files), "-o", str(files)]) == 2
    assert "is one of the timelines" in capsys.readouterr().err
    assert main(["timeline", "summary", str(files), "--json"]) == 0
    (tensor,) = json.loads(capsys.readouterr().out)["tensors"]
    assert tensor["tensor"] == "t1" and tensor["slowest_rank"] == 1 and tensor["ms"] == pytest.approx(0.058)
    assert main(["timeline", "summary", str(files)]) == 0
    assert "t1" in capsys.readouterr().out
    assert main(["timeline", "breakdown", str(files)]) == 0
    shown = capsys.readouterr().out
    assert "wait for others" in shown and "slowest: rank 0, the last in 1 operations" in shown
    assert main(["timeline", "breakdown", str(files), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"][1]["parts"]["wait for others"] == pytest.approx(0.03)


def test_a_missing_rank_is_a_warning(files, capsys):
    files.with_name("t.rank1.json").unlink()
    assert main(["timeline", "summary", str(files)]) == 0
    assert "no timeline of rank 1 of 2 was given or found" in capsys.readouterr().err
