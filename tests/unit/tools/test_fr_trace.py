"""``horocache dump --fr-trace``: flight records as torch's own analysis reads them."""

import pickle

import msgspec
import pytest

from horocache.cli.entry_point import main
from horocache.observe.records import Event, Pending, Record, SetMembers

torch_fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")


class Rank:
    """The events of a rank, written one by one."""

    def __init__(self, rank, size=2, **fields):
        self.rank, self.size, self.fields = rank, size, fields
        self.events, self.pending = [], []
        self.handles = iter(range(100 * rank, 100 * rank + 100))

    def event(self, what, handle, name, op, sequence, **fields):
        at_ns = 1000 * (len(self.events) + 1)
        number = len(self.events) + self.fields.get("lost", 0) + 1
        event = Event(at_ns=at_ns, what=what, number=number, name=name, op=op, handle=handle, sequence=sequence)
        self.events.append(msgspec.structs.replace(event, **({"bytes": 4, "tensors": 1} | fields)))

    def does(self, name, sequence, op="allreduce", until="done", **fields):
        """An operation up to the event ``until``."""
        handle = next(self.handles)
        steps = ["submitted", *(["started"] if sequence is not None else []), *([until] if until != "started" else [])]
        for what in steps if until != "submitted" else ["submitted"]:
            self.event(what, handle, name, op, (sequence or 0) if what == "started" else 0, **fields)
        if until in ("submitted", "started"):
            place = {"process_set": 0, "bytes": 4} | fields
            self.pending.append(Pending(since_ns=1, name=name, op=op, tensors=1, handle=handle, **place))

    def write(self, folder):
        fields = {name: value for name, value in self.fields.items() if name != "lost"}
        head = {"horocache": "1", "host": "h", "why": "asked", "now_ns": 10**9, "job": "j"} | fields
        record = Record(rank=self.rank, size=self.size, pid=1, pending=self.pending, events=self.events, **head)
        path = folder / f"{self.rank}.json"
        path.write_bytes(msgspec.json.encode(record))
        return str(path)


def analysed(tmp_path, *ranks):
    """torch's analysis of the ranks' records: its collectives, in order."""
    files = [rank.write(tmp_path) for rank in ranks]
    folder = tmp_path / "trace"
    assert main(["dump", "--fr-trace", str(folder), *files]) == 0
    torch_fr_trace.main([str(folder), "-o", str(tmp_path / "db")])
    _, db = pickle.loads((tmp_path / "db").read_bytes())
    return db.collectives


def names(collectives):
    return [collective.collective_frames[0]["name"] for collective in collectives]


def test_operations_match_in_the_order_that_the_ranks_agreed_on(tmp_path):
    one, two = Rank(0), Rank(1)
    for rank, order in ((one, "abc"), (two, "cab")):
        handles = {name: next(rank.handles) for name in order}
        for name in order:
            rank.event("submitted", handles[name], name, "allreduce", 0)
        for name, sequence in (("b", 0), ("c", 1), ("a", 1)):  # c and a run as one
            rank.event("started", handles[name], name, "allreduce", sequence)
            rank.event("done", handles[name], name, "allreduce", 0)
    found = analysed(tmp_path, one, two)
    assert names(found) == ["allreduce 'b'", "allreduce 'c'", "allreduce 'a'"]
    assert all(collective.pass_check and collective.collective_state == "completed" for collective in found)


@pytest.mark.parametrize(
    "op", ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "reduce", "gather", "scatter", "barrier"]
)
def test_an_operation_whose_rows_differ_between_ranks_is_no_mistake(tmp_path, op):
    ranks = [Rank(0), Rank(1)]
    differs = op in ("allgather", "alltoall", "gather", "scatter")
    for rank in ranks:
        rank.does("x", 0, op, bytes=4 * (1 + rank.rank * differs))
    assert [collective.pass_check for collective in analysed(tmp_path, *ranks)] == [True]


def test_the_rank_that_lacks_an_operation_is_missing(tmp_path):
    ranks = [Rank(rank, size=3) for rank in range(3)]
    for rank in ranks:
        rank.does("step", 0)
    for rank in (ranks[0], ranks[2]):
        rank.does("loss", None, until="submitted")
    good, bad = analysed(tmp_path, *ranks)
    assert good.pass_check and names([bad]) == ["allreduce 'loss'"]
    assert bad.missing_ranks == {1} and bad.collective_state == "scheduled"


def test_a_refused_operation_shows_the_sizes_that_differ(tmp_path):
    ranks = [Rank(0), Rank(1)]
    for rank in ranks:
        rank.does("x", None, until="failed", bytes=4 + rank.rank)
    (found,) = analysed(tmp_path, *ranks)
    assert not found.pass_check and found.collective_state == "scheduled"
    assert "SIZE_OR_SYNTAX_MISMATCH" in str(next(iter(found.mismatch_collectives.values())).type_of_mismatch)


def test_what_one_rank_has_forgotten_is_left_out_on_all(tmp_path):
    long, short = Rank(0), Rank(1, lost=7)
    for sequence in range(4):
        long.does(f"step {sequence}", sequence)
    short.event("done", 99, "step 1", "allreduce", 0)  # its start is lost
    for sequence in (2, 3):
        short.does(f"step {sequence}", sequence)
    # Others may have run as one with step 2 and be lost.
    assert names(analysed(tmp_path, long, short)) == ["allreduce 'step 3'"]


def test_process_sets_have_their_own_ranks(tmp_path):
    ranks = [Rank(rank, size=3, sets=[SetMembers(4, [0, 2])] if rank != 1 else []) for rank in range(3)]
    for rank in ranks:
        rank.does("all", 0)
    for rank in (ranks[0], ranks[2]):
        rank.does("two", 0, process_set=4)
    found = analysed(tmp_path, *ranks)
    assert all(collective.pass_check for collective in found)
    assert [(collective.pg_desc, collective.expected_ranks) for collective in found] == [
        ("0:world", {0, 1, 2}),
        ("4:process set 4", {0, 2}),
    ]


def test_a_group_that_runs_in_pieces_is_one_operation_and_messages_are_left_out(tmp_path):
    ranks = [Rank(0), Rank(1)]
    for rank in ranks:
        handle = next(rank.handles)
        rank.event("submitted", handle, "group", "allreduce", 0)
        for sequence in (0, 1):
            rank.event("started", handle, "group", "allreduce", sequence)
        rank.event("done", handle, "group", "allreduce", 0)
        rank.does("message", None, op="send" if rank.rank == 0 else "recv")
        rank.events.append(Event(at_ns=1, what="note", number=99, note="rank 1 has gone"))
    assert names(analysed(tmp_path, *ranks)) == ["allreduce 'group'"]


def test_records_of_one_rank_or_of_several_jobs_are_refused(tmp_path, capsys):
    file = Rank(0).write(tmp_path)
    assert main(["dump", "--fr-trace", str(tmp_path / "x"), file, file]) == 1
    (tmp_path / "other").mkdir()
    other = Rank(1, job="k").write(tmp_path / "other")
    assert main(["dump", "--fr-trace", str(tmp_path / "x"), file, other]) == 1
    err = capsys.readouterr().err
    assert "two of the records are of one rank" in err and "of several jobs" in err
    assert main(["dump", "--fr-trace", "/proc/nowhere", file]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_a_folder_with_files_of_other_ranks_is_refused(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rank_7").touch()
    rank = Rank(0)
    rank.does("a", 1)
    assert main(["dump", rank.write(tmp_path), "--fr-trace", str(tmp_path / "out")]) != 0
    assert "has rank_7, which is not of these ranks" in capsys.readouterr().err
