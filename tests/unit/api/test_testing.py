"""``horocache.testing``: ranks in processes, their outcomes, and injected faults."""

from __future__ import annotations

import os
import re
import signal
import time
from multiprocessing.context import ForkServerProcess
from types import SimpleNamespace

import pytest

import horocache as hc
from horocache.testing import Fault, RanksFailed, ranks, run_ranks
from horocache.testing.faults import faults_text


def test_faults_are_described_by_place_rank_and_passage():
    assert Fault(at="data", do="kill", rank=1, step=41).text == "data:1:41=kill"
    assert Fault(at="data", do="stop", rank=2).text == "data:2=stop"
    assert faults_text([Fault(at="a", do="error"), Fault(at="b", do="kill")]) == "a=error;b=kill"
    with pytest.raises(ValueError, match="not 'explode'"):
        Fault(at="a", do="explode")
    with pytest.raises(ValueError, match="needs a rank"):
        Fault(at="a", do="kill", step=3)


def test_the_documented_places_of_faults_are_those_of_the_core():
    def start_with_faults(places):
        hc.init(fault=faults_text(Fault(at=place, do="kill", rank=0, step=99) for place in places))

    lines = re.search(r"at: (.*?)\n\s+do:", Fault.__doc__, re.DOTALL)[1]
    places = re.findall(r'``"([^"]*)"``', lines)
    assert len(places) == 5
    run_ranks(start_with_faults, 1, args=(places,))
    with pytest.raises(RanksFailed, match="fault"):
        run_ranks(start_with_faults, 1, args=(["no.such.place"],))


def test_the_time_to_start_processes_does_not_count_against_the_timeout(monkeypatch):
    def start_slowly(process):
        clock.append(clock[-1] + 100.0)
        start(process)

    clock, start = [0.0], ForkServerProcess.start
    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: clock[-1]))
    monkeypatch.setattr(ForkServerProcess, "start", start_slowly)
    assert run_ranks(os.getpid, 2, timeout=60.0)
    assert clock == [0.0, 100.0, 200.0]


def test_ranks_get_their_environment_and_results_are_in_rank_order():
    def read_environment(factor):
        return (
            factor * int(os.environ["HOROCACHE_RANK"]),
            os.environ["HOROCACHE_SIZE"],
            os.environ["HOROCACHE_LOG_LEVEL"],
        )

    results = run_ranks(read_environment, 3, args=(10,), knobs={"log_level": "error"})
    assert results == [(rank * 10, "3", "error") for rank in range(3)]


def test_a_failure_names_the_rank_and_shows_its_trace_and_output():
    def fail_on_rank_1():
        if os.environ["HOROCACHE_RANK"] == "1":
            print("last words")
            raise KeyError("lost")

    with pytest.raises(RanksFailed, match=r"(?s)rank 0 returned.*rank 1 raised.*KeyError.*lost.*last words") as failed:
        run_ranks(fail_on_rank_1, 2)
    assert isinstance(failed.value.outcomes[1].error, KeyError)


def test_a_rank_that_dies_or_hangs_is_reported_and_its_process_ends():
    def die_or_hang():
        rank = int(os.environ["HOROCACHE_RANK"])
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 2:
            time.sleep(1000)
        return os.getpid()

    outcomes = run_ranks(die_or_hang, 3, timeout=3, check=False)
    assert outcomes[0].ok
    assert not outcomes[1].ok and outcomes[1].exit_code == -9
    assert (
        outcomes[2].late
        and "time.sleep" not in outcomes[2].describe()
        and "did not come back" in outcomes[2].describe()
    )
    assert "most recent call first" in outcomes[2].output
    with pytest.raises(ProcessLookupError):
        os.kill(outcomes[0].value, 0)


def test_errors_that_cannot_be_pickled_arrive_as_text():
    def raise_a_local_class():
        class Odd(Exception):
            def __init__(self, first, second):
                super().__init__(f"{first} and {second}")

        raise Odd("this", "that")

    (outcome,) = run_ranks(raise_a_local_class, 1, check=False)
    assert "this and that" in str(outcome.error) and "Odd" in outcome.trace


def test_a_job_has_at_least_one_rank():
    with pytest.raises(ValueError, match="at least one rank"):
        run_ranks(print, 0)
