"""``horocache doctor --hang``: ranks that wait, and NCCL's answer about them."""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import threading

import msgspec
import pytest

from horocache.base.untrusted_text import printable
from horocache.cli import dump
from horocache.cli.entry_point import main
from horocache.doctor import hang
from horocache.observe import flight, nccl_ras
from horocache.observe.flight import NoAnswerError
from horocache.observe.flight_report import pending_on_some
from horocache.observe.records import Event, Pending, Record

S = 1_000_000_000


def record(rank, pending=(), **fields):
    head = {"horocache": "1", "size": 3, "host": "h", "why": "asked", "now_ns": 100 * S, "events": [], "job": "j"}
    return Record(rank=rank, pending=list(pending), **(head | {"pid": 1000 + rank} | fields))


def waits(name, since_s, process_set=0):
    since_ns = int(since_s * S)
    return Pending(since_ns=since_ns, name=name, op="allreduce", process_set=process_set, tensors=1, bytes=4)


def member(rank, pid, counts, error=0, aborts=False):
    status = {"init_state": 0, "async_error": error, "finalize_called": False, "abort_flag": aborts}
    place = {"rank": rank, "host": "10.0.0.1", "pid": pid, "cuda_dev": rank, "nvml_dev": rank}
    return place | {"status": status, "collective_counts": counts}


def missing(rank, pid, *, dead):
    place = {"rank": rank, "host": "10.0.0.2", "pid": pid, "cuda_dev": 0, "nvml_dev": 0}
    return place | {"status": {"unresponsive": True, "considered_dead": dead}}


def answer_of_nccl(ranks, missing_ranks=()):
    communicator = {"hash": "0xabc", "secondary_hash": "0x1:0x2", "size": 3, "ranks_count": len(ranks)}
    communicator |= {"missing_ranks_count": len(missing_ranks), "ranks": ranks, "missing_ranks": list(missing_ranks)}
    head = {"nccl_version": "2.28.9", "cuda_runtime_version": 13000, "timestamp": "2026-01-01 00:00:00"}
    return head | {"communicators_count": 1, "communicators": [communicator], "ras": {"timeouts_count": 0}}


@contextlib.contextmanager
def ras(answers):
    """A server on a port of its own that answers the commands by ``answers``; it closes behind the last one."""
    received = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            asking, _ = listening.accept()
            with asking, asking.makefile("rb") as lines:
                for answer in answers:
                    received.append(lines.readline().decode())
                    asking.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}", received
        finally:
            thread.join(30)
            assert not thread.is_alive()


def ras_with(report):
    return ras([b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n", json.dumps(report, indent=2).encode()])


def test_nccl_is_asked_in_the_words_of_its_protocol():
    with ras_with(answer_of_nccl([member(0, 7, {"AllReduce": 5})])) as (address, received):
        report = nccl_ras.ask(address)
    assert received == ["CLIENT PROTOCOL 2\n", "TIMEOUT 5\n", "SET FORMAT json\n", "STATUS\n"]
    assert report.nccl_version == "2.28.9" and report.communicators[0].ranks[0].collective_counts == {"AllReduce": 5}


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([b"SERVER PROTOCOL 2\n", b"OK\n", b"ERROR: Unknown command\n"], "it takes NCCL 2.28.7 or newer"),
        ([b"HTTP/1.1 400 Bad Request\n"], r"CLIENT PROTOCOL 2 with 'HTTP/1.1 400 Bad Request'"),
        ([b"\x1b]0;x\x07" * 90], r"\\x1b\]0;x\\x07"),
        ([b""], "closed the connection"),
        ([b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n", b"{"], "sends an invalid answer"),
        ([b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n", b'{"nccl_version": 3}'], "sends an invalid answer: Expected `str`"),
        ([b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n", b"[" * 100_000], "sends an invalid answer"),
    ],
)
def test_another_answer_is_an_error_of_one_line(answers, why):
    with ras(answers) as (address, _), pytest.raises(NoAnswerError, match=why) as raised:
        nccl_ras.ask(address)
    assert printable(str(raised.value)) == str(raised.value)


def test_an_answer_that_does_not_come_is_an_error_in_time(monkeypatch):
    monkeypatch.setattr(nccl_ras, "_TIMEOUT_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(NoAnswerError, match="does not answer: timed out"),
    ):
        nccl_ras.ask(f"127.0.0.1:{silent.getsockname()[1]}")


def test_an_address_where_nothing_listens_is_named():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen, and no other process can
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(NoAnswerError, match=f"{address} does not answer: .*refused"):
            nccl_ras.ask(address)


def test_a_host_that_is_no_name_is_an_error_of_one_line():
    with pytest.raises(NoAnswerError, match=r"a\.\.b:28028 does not answer"):
        nccl_ras.ask("a..b:28028")


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "host:70000", "host:²"])
def test_an_address_that_is_none_is_named(address):
    with pytest.raises(NoAnswerError, match="is not HOST:PORT"):
        nccl_ras.ask(address)


def describe(report):
    ranks = {1000: 4, 1001: 5, 1002: 6}  # horocache's numbers differ from NCCL's in a process set
    return nccl_ras.describe(msgspec.convert(report, nccl_ras.Report), ranks, {"10.0.0.1", "fe80::1"})


def test_the_rank_that_has_launched_less_is_named():
    counts = [{"AllReduce": count, "Broadcast": 2, "Reduce": 0} for count in (413, 412, 413)]
    assert describe(answer_of_nccl([member(rank, 1000 + rank, counts[rank]) for rank in range(3)])) == [
        "NCCL 2.28.9, communicator 0xabc of 3 ranks:",
        "  AllReduce, launched: 413 by rank 4, rank 6; 412 by rank 5",
        "  launched by each: 2 Broadcast",
    ]


def test_errors_aborts_and_missing_ranks_are_named():
    ranks = [member(0, 1000, {"AllReduce": 1}, error=6), member(1, 77, {"AllReduce": 1}, aborts=True)]
    left = missing(4, 79, dead=False)
    left["status"]["unresponsive"] = False
    lost = missing(2, 1002, dead=False) | {"host": "10.0.0.1"}
    assert describe(answer_of_nccl(ranks, [lost, missing(3, 78, dead=True), left]))[1:] == [
        "  launched by each: 1 AllReduce",
        "  rank 4 has the error 6 of NCCL",
        "  NCCL's rank 1 (process 77 on 10.0.0.1) has aborted",
        "  rank 6 does not answer, as NCCL sees it",
        "  NCCL's rank 3 (process 78 on 10.0.0.2) is dead, as NCCL sees it",
        "  NCCL's rank 4 (process 79 on 10.0.0.2) has left the communicator, as NCCL sees it",
    ]


def test_communicators_of_other_jobs_and_of_processes_elsewhere_with_the_same_number_are_left_out():
    elsewhere = member(0, 1000, {"AllReduce": 1}) | {"host": "10.0.0.2"}
    assert describe(answer_of_nccl([member(0, 77, {"AllReduce": 1}), elsewhere])) == []
    here = member(1, 1001, {"AllReduce": 1}) | {"host": "[fe80::1%eth0]"}
    assert describe(answer_of_nccl([elsewhere, here, member(2, 77, {})]))[1:] == [
        "  AllReduce, launched: 1 by NCCL's rank 0 (process 1000 on 10.0.0.2), rank 5; "
        "0 by NCCL's rank 2 (process 77 on 10.0.0.1)"
    ]


def test_only_ranks_that_have_loaded_nccl_are_asked_about_it():
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        assert nccl_ras.describe_jobs([record(0, pid=process.pid)]) == []


def test_the_ranks_own_address_is_asked(monkeypatch):
    monkeypatch.setattr(nccl_ras, "_has_nccl", lambda _pid: True)
    monkeypatch.setattr(nccl_ras, "_own_addresses", lambda: {"10.0.0.1"})
    with ras_with(answer_of_nccl([member(0, 1000, {"AllReduce": 5})])) as (address, _):
        monkeypatch.setattr(nccl_ras, "_address", lambda _pid: address)
        assert nccl_ras.describe_jobs([record(0), record(1)])[1:] == ["  launched by each: 5 AllReduce"]
    monkeypatch.setattr(nccl_ras, "_address", lambda _pid: "nowhere")
    assert nccl_ras.describe_jobs([record(0)]) == [
        "NCCL's state is not known: NCCL_RAS_ADDR='nowhere' is not HOST:PORT"
    ]


def test_dumps_and_explanations_end_with_nccls_state(monkeypatch, capsys):
    monkeypatch.setattr(nccl_ras, "describe_jobs", lambda records: [f"NCCL of rank {records[0].rank}"])
    assert hang.explain([record(3)], {})[-2:] == ["", "NCCL of rank 3"]
    monkeypatch.setattr(flight, "ranks_of", lambda pid: [pid])
    monkeypatch.setattr(flight, "ask_all", lambda _pids: ([record(3)], []))
    options = argparse.Namespace(targets=["1234567"], events=1, json=False, fr_trace=None)
    assert dump.run(options) == 0
    assert capsys.readouterr().out.endswith("\n\nNCCL of rank 3\n")


def test_the_explanation_names_the_late_rank_and_shows_its_stack():
    records = [record(0, [waits("loss", 88)]), record(1, stacks="train.py:40"), record(2, [waits("loss", 99.9)])]
    assert hang.explain(records, pending_on_some(records)) == [
        "job j: 3 of 3 ranks run here",
        "  rank 0 (process 1000): allreduce 'loss', 4 B, pending for 12.000 s",
        "  rank 1 (process 1001): waits for no operation",
        "  rank 2 (process 1002): allreduce 'loss', 4 B, pending for 0.100 s",
        "",
        "pending on some of these ranks only:",
        "  allreduce 'loss': on ranks 0, 2, not on rank 1",
        "",
        "rank 1 is here:",
        "  train.py:40",
    ]


def answers(monkeypatch, *times):
    """Let the ranks answer with these lists of records, the last one also from then on; return the pauses."""
    pauses, left = [], list(times)
    monkeypatch.setattr(hang.time, "sleep", pauses.append)
    monkeypatch.setattr(hang.psutil, "pid_exists", lambda _pid: True)
    monkeypatch.setattr(hang.flight, "ranks_of", lambda pid: {pid: ["name"]})
    monkeypatch.setattr(hang.flight, "ask_all", lambda _sockets: (left.pop(0) if len(left) > 1 else left[0], []))
    return pauses


def test_a_job_hangs_if_a_rank_lacks_what_others_have_waited_for_a_second(monkeypatch, capsys):
    pauses = answers(monkeypatch, [record(0, [waits("loss", 90)]), record(1)])
    assert main(["doctor", "--hang", "1000"]) == 1
    assert "allreduce 'loss': on rank 0, not on rank 1" in capsys.readouterr().out and pauses == [1.0]


OLD, NEW = waits("loss", 90), waits("loss", 99.5)


@pytest.mark.parametrize(
    "times",
    [
        [[record(0, [NEW]), record(1)]],
        # Rank 1 has come late: the operation has begun.
        [[record(0, [OLD]), record(1, [NEW])]],
        # The second time, it has ended everywhere, or rank 1 has begun it, or it is the next one of that name.
        [[record(0, [OLD]), record(1)], [record(0), record(1)]],
        [[record(0, [OLD]), record(1)], [record(0, [OLD]), record(1, [NEW])]],
        [[record(0, [OLD]), record(1)], [record(0, [msgspec.structs.replace(OLD, handle=9)]), record(1)]],
        # All ranks have agreed on it, and rank 1 has done its part.
        [[record(0, [OLD], events=[Event(at_ns=0, what="started", op="allreduce", handle=OLD.handle)]), record(1)]],
        # A message, and a rank that has joined.
        [[record(0, [msgspec.structs.replace(OLD, op="recv")]), record(1)]],
        [[record(0, [OLD]), record(1, [msgspec.structs.replace(OLD, op="join", name="join")])]],
        # Two jobs of one rank.
        [[record(0, [OLD], size=1, pid=1), record(0, size=1, pid=2)]],
    ],
)
def test_a_rank_that_is_only_slow_is_not_accused(monkeypatch, capsys, times):
    answers(monkeypatch, *times)
    assert main(["doctor", "--hang", "1000"]) == 0
    assert "not on rank" not in capsys.readouterr().out


def test_a_job_of_which_all_ranks_wait_for_the_same_does_not_lack_a_rank(monkeypatch, capsys):
    ranks = [record(rank, [waits("loss", 90)]) for rank in range(2)]
    monkeypatch.setattr(hang.flight, "ranks_of", lambda pid: {pid: ["name"]})
    monkeypatch.setattr(hang.flight, "ask_all", lambda _sockets: (ranks, ["process 9 does not answer (stopped?)"]))
    assert main(["doctor", "--hang", "1000"]) == 1
    out, err = capsys.readouterr()
    assert "pending on some" not in out and err == "horocache: process 9 does not answer (stopped?)\n"
    monkeypatch.setattr(hang.flight, "ask_all", lambda _sockets: (ranks, []))
    assert main(["doctor", "--hang", "1000"]) == 0


def test_without_a_process_the_ranks_of_this_user_are_asked(monkeypatch, capsys):
    asked = []
    own = os.getpid()
    monkeypatch.setattr(hang.flight, "ranks_here", lambda: {own: ["a"], (1 << 31) - 1: ["b"]})
    monkeypatch.setattr(hang.flight, "ask_all", lambda sockets: (asked.append(sockets), ([record(0)], []))[1])
    assert main(["doctor", "--hang"]) == 0 and asked == [{own: ["a"]}]
    monkeypatch.setattr(hang.flight, "ranks_here", dict)
    monkeypatch.setattr(hang.flight, "ask_all", lambda _sockets: ([], []))
    capsys.readouterr()
    assert main(["doctor", "--hang"]) == 0 and capsys.readouterr().out == "no rank of horocache runs here\n"


@pytest.mark.parametrize("arguments", [["--hang", "0"], ["--hang", "x"], ["--hang", "1", "--json"]])
def test_other_arguments_are_refused(arguments):
    assert main(["doctor", *arguments]) == 2


def test_a_process_that_is_no_rank_is_named(capsys):
    assert main(["doctor", "--hang", "999999999"]) == 1
    assert capsys.readouterr().err == "horocache: there is no process 999999999 here\n"
