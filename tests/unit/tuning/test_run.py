"""A tuning run: jobs that fail, hang, are interrupted, or run out of budget; what was measured is kept."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from horocache.errors import InvalidArgumentError
from horocache.tuning import run as tuning
from horocache.tuning.lookup import World
from horocache.tuning.plan import JobPlan, Unit, Wish
from horocache.tuning.records import RECORDS_FILE
from horocache.tuning.run import Collected, TuningRun, resumed
from horocache.tuning.table import Candidate, decode, encode

from .tables import HERE, make_table

SIZES = (64, 1024, 4096, 65536)
TWO, FOUR = World(2, 1), World(4, 1)
FAKE = str(Path(__file__).with_name("fake_worker.py"))


def make_wish(**fields):
    given = {"ops": ("allreduce",), "sizes": SIZES, "worlds": (TWO,), "backends": (), "overlap": 4, "repetitions": 5}
    return Wish(**{**given, **fields})


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Prepares a run whose jobs are fake workers; ``start.plans()`` are the plans of the jobs that were started."""
    monkeypatch.setattr(tuning, "_SHORTEST_JOB_SECONDS", 0.2)
    behaviour = tmp_path / "behaviour"

    def prepare(behaviours=None, collected=None, budget=30.0, check_signals=lambda: None, **fields):
        behaviour.write_text(json.dumps(behaviours or {}))
        command = lambda self, world, folder: [sys.executable, FAKE, str(folder), str(behaviour)]  # noqa: E731
        monkeypatch.setattr(TuningRun, "_command", command)
        wish = make_wish(**fields)
        collected = Collected() if collected is None else collected
        return TuningRun(wish, collected, budget, prepare.kept.append, check_signals=check_signals), collected

    prepare.kept = []
    prepare.plans = lambda: [
        msgspec.json.decode(line, type=JobPlan) for line in (tmp_path / "plans").read_bytes().splitlines()
    ]
    return prepare


def test_everything_is_measured_and_the_rest_is_known(start):
    run, collected = start(worlds=(TWO, FOUR))
    run.run()
    assert run.missing() == [] and collected.failures == {}
    assert {world for world, _ in collected.sizes} == {TWO, FOUR} and len(collected.sizes) == 8
    assert collected.host_names == {TWO: ("here",), FOUR: ("here",)} and collected.libraries == {"python": "3"}
    # The smallest, the largest and a middle size of both layouts come first.
    assert [(plan.ranks, [unit.bytes for unit in plan.units]) for plan in start.plans()] == [
        (2, [64, 65536, 1024]),
        (4, [64, 65536, 1024]),
        (2, [4096]),
        (4, [4096]),
    ]
    assert len(start.kept) >= 4


def test_the_table_of_a_run_is_correct_and_canonical(start):
    run, collected = start({"allreduce 64 x/fast": 5.0})
    run.run()
    table = decode(encode(collected.table("0.1.0", HERE, ("tune", "--quiet"), 4, ("x",))))
    [layout] = table.layouts_of("allreduce")
    assert [size.bytes for size in layout.sizes] == list(SIZES) and layout.host_names == ("here",)
    assert [one.median_us for one in layout.sizes[0].candidates] == [5.0, 10.0]
    assert table.command == ("tune", "--quiet") and table.when.endswith("Z")


@pytest.mark.parametrize(
    ("behaviour", "said"), [("die", "was killed by signal 9"), ("raise", "PeerLostError: rank 1 died")]
)
def test_a_candidate_that_ends_a_job_is_skipped_and_its_reason_is_kept(start, behaviour, said):
    run, collected = start({"allreduce 1024 x/slow": behaviour})
    run.run()
    assert run.missing() == [] and collected.failures == {}
    by_size = {unit.bytes: {one.name: one for one in found} for (_, unit), found in collected.sizes.items()}
    assert by_size[64]["x/slow"].median_us == by_size[1024]["x/fast"].median_us == 10.0
    for size in (1024, 4096):  # it is skipped from then on
        assert by_size[size]["x/slow"].reason.startswith("allreduce of 1024 bytes by x/slow: ")
        assert said in by_size[size]["x/slow"].reason
    assert [len(plan.units) for plan in start.plans()] == [3, 1, 1]


@pytest.fixture
def over(monkeypatch):
    """Lets the time of a job be over as soon as its records contain a text."""

    def when(text):
        def run_until_ended(job, deadline, each):
            records = job.output.with_name(RECORDS_FILE)
            while not job.wait(0.01):
                if records.exists() and text in records.read_bytes():
                    each()
                    return False
            return True

        monkeypatch.setattr(tuning.jobs, "run_until_ended", run_until_ended)

    return when


def test_a_candidate_that_hangs_is_skipped_once_it_has_run_for_too_long(start, over, monkeypatch):
    monkeypatch.setattr(tuning, "_PATIENCE_SECONDS", 0.0)
    over(b"x/slow")
    run, collected = start({"allreduce 64 x/slow": "hang"}, sizes=(64,))
    run.run()
    [fast, slow] = collected.sizes[TWO, Unit("allreduce", 64)]
    assert fast.median_us == 10.0 and collected.failures == {}
    assert "x/slow: it was not over when its part of the budget was" in slow.reason


def test_the_candidate_of_a_job_that_is_only_slow_is_measured_by_the_next_job(start, over):
    over(b"65536")
    run, collected = start({"allreduce 65536 x/fast": "hang"}, sizes=(64, 65536))
    run.run()
    assert list(collected.sizes) == [(TWO, Unit("allreduce", 64))]
    first, second = start.plans()
    assert first.skipped == second.skipped == {} and second.units == (Unit("allreduce", 65536),)
    assert collected.failures[TWO].startswith("the job had measured nothing: it was not over when its part")


def test_a_layout_whose_job_does_not_start_is_given_up_with_the_end_of_its_output(start):
    run, collected = start({"start": "die"})
    run.run()
    assert collected.failures == {TWO: "the job ended with code 1: there is no network; at all"}
    assert len(start.plans()) == 1


def test_a_layout_is_given_up_after_three_failures(start):
    run, collected = start(
        {f"{op} 64 x/fast": "raise" for op in ("reduce", "gather", "scatter", "alltoall")},
        ops=("reduce", "gather", "scatter", "alltoall"),
        sizes=(64,),
    )
    run.run()
    assert len(start.plans()) == 3 and len(collected.sizes) == 2
    assert collected.failures == {TWO: "scatter of 64 bytes by x/fast: PeerLostError: rank 1 died"}


def test_a_budget_that_is_over_starts_nothing(start, tmp_path):
    run, collected = start(budget=0.0)
    run.run()
    assert collected.sizes == {} and len(run.missing()) == 4 and not (tmp_path / "plans").exists()


def test_an_interrupt_ends_the_job_and_keeps_what_was_measured(start):
    run, collected = start({"allreduce 1024 x/slow": "interrupt"})
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert [unit.bytes for _, unit in collected.sizes] == [64, 65536]
    assert start.kept[-1] is collected and len(run.missing()) == 2


def test_a_signal_that_was_noted_ends_the_job_and_blames_no_candidate(start, tmp_path, monkeypatch):
    def check_signals():
        if collected.sizes:
            raise KeyError("signal")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run, collected = start({"allreduce 1024 x/slow": "hang"}, check_signals=check_signals)
    with pytest.raises(KeyError):
        run.run()
    assert start.kept[-1] is collected and collected.failures == {} and len(run.missing()) >= 2
    assert not list(tmp_path.glob("horocache-run-*"))


def test_a_resumed_run_measures_only_what_is_missing(start):
    first = make_table({"allreduce": {(2, 1): {64: {"x/fast": 3}}}, "gather": {(8, 2): {64: {"y": 1}}}})
    collected = resumed(first, "0.1.0", HERE, make_wish())
    run, _ = start(collected=collected, sizes=(64, 1024))
    run.run()
    [plan] = start.plans()
    assert plan.units == (Unit("allreduce", 1024),)
    assert collected.sizes[TWO, Unit("allreduce", 64)] == (Candidate("x/fast", 3.0, 0.5, 20),)
    assert (World(8, 2), Unit("gather", 64)) in collected.sizes  # what was not asked for now is kept, too


@pytest.mark.parametrize(
    ("version", "host", "wish", "said"),
    [
        ("0.2.0", HERE, {}, "horocache 0.2.0, not 0.1.0"),
        ("0.1.0", HERE.__class__("Other", 8, 32, "6.1.0", HERE.hash), {}, "cpu Other, not AMD EPYC"),
        ("0.1.0", HERE, {"overlap": 2}, "--overlap 2, not 4"),
        ("0.1.0", HERE, {"backends": ()}, "all backends, not --backends shm,mpi/fold"),
        ("0.1.0", HERE, {"backends": ("shm",)}, "--backends shm, not --backends shm,mpi/fold"),
    ],
)
def test_times_that_cannot_be_compared_are_not_resumed(version, host, wish, said):
    table = make_table({}, backends=("shm", "mpi/fold"))
    with pytest.raises(InvalidArgumentError, match="cannot be compared") as raised:
        resumed(table, version, host, make_wish(**{"backends": ("mpi/fold", "shm"), **wish}))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("x", None),
        ("x/fast", None),
        ("y", "the job does not have it"),
        ("x/wrong", "no operation was measured by it"),
        ("z", "no operation was measured by it"),
    ],
)
def test_a_backend_that_has_no_time_at_all_is_known_with_the_reason(backend, reason):
    collected = Collected()
    absent = Candidate("y", reason="the job does not have it")
    collected.sizes[TWO, Unit("gather", 64)] = (Candidate("x/fast", 3.0), Candidate("x/wrong", wrong=1), absent)
    assert collected.why_without_times(backend) == reason
