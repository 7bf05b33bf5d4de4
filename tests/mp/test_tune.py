"""``horocache tune`` as a user runs it: its jobs, its budget, interrupts, ranks that die or stop."""

import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import wait_until_gone
from processes import marked

from horocache import _core
from horocache.tuning.fingerprint import fingerprint_here
from horocache.tuning.lookup import rules_of
from horocache.tuning.table import OPERATIONS, load

SHM = ["shm/auto", "shm/direct", "shm/oneshot", "shm/twoshot"]
needs_no_mpiexec = pytest.mark.skipif(
    (Path(sys.executable).parent / "mpiexec").exists(), reason="this environment has an mpiexec"
)
# Prints the number of right elements of sums of several sizes.
SUMS = """
import numpy as np, horocache as hc
hc.init()
sums = [hc.allreduce(np.ones(count, np.float32), op=hc.Sum, name=str(count)) for count in (1, 100, 100_000)]
print(all((each == hc.size()).all() for each in sums))
"""


def tune(launcher, *arguments, **keywords):
    keywords.setdefault("deadline_s", 100.0)
    return launcher.run("tune", *arguments, "--out", "t.json", module="horocache.tools", **keywords)


def sizes_of(table):
    """{(operation, ranks, bytes): candidates}"""
    return {
        (measurements.op, layout.ranks, size.bytes): size.candidates
        for measurements in table.operations
        for layout in measurements.layouts
        for size in layout.sizes
    }


def test_t1_the_times_of_all_candidates_are_measured_within_the_budget(launcher):
    arguments = ["--ops", "all_reduce,all_gather", "--sizes", "1K:64K:x64", "--worlds", "2,3", "--repeat", "5"]
    finished = tune(launcher, *arguments, "--budget", "60")
    assert finished.code == 0 and finished.err == b"", finished.report()
    assert finished.seconds < 70
    table = load(launcher.scratch / "t.json")
    assert (table.horocache, table.host, table.overlap) == (_core.__version__, fingerprint_here(), 4)
    assert table.libraries["numpy"] == np.__version__ and table.command[0] == "tune" and table.failures == ()
    sizes = sizes_of(table)
    assert set(sizes) == {(op, n, size) for op in ("allreduce", "allgather") for n in (2, 3) for size in (1024, 65536)}
    for (op, _, _), candidates in sizes.items():
        assert sorted(one.name for one in candidates) == SHM
        assert all(
            one.median_us and 3 <= one.repetitions <= 5 and not one.wrong for one in candidates if not one.reason
        )
        assert sum(not one.reason for one in candidates) == (4 if op == "allreduce" else 1)
    assert "t.json: 8 measurements; HOROCACHE_TUNING_TABLE=t.json lets a job use it" in finished.stdout
    # A job can run by the rules.
    rules = ";".join(str(rule) for rule in rules_of(table))
    job = launcher.run("-np", "2", "--select", rules, sys.executable, "-c", SUMS)
    assert job.of_rank(0) == job.of_rank(1) == ["True"], job.report()


def test_t1_gloo_is_measured_if_it_is_named(launcher, needs_torch):
    arguments = ["--ops", "all_reduce,alltoall", "--sizes", "1K", "--worlds", "2", "--repeat", "5"]
    finished = tune(launcher, *arguments, "--backends", "gloo,shm/auto")
    assert finished.code == 0, finished.report()
    table = load(launcher.scratch / "t.json")
    assert "torch" in table.libraries
    for candidates in sizes_of(table).values():
        assert sorted(one.name for one in candidates if one.median_us and not one.wrong) == ["gloo", "shm/auto"]


def test_every_operation_has_right_results_and_times(launcher):
    finished = tune(launcher, "--sizes", "4,1000", "--worlds", "3", "--repeat", "3", "--overlap", "2", "--quiet")
    assert (finished.code, finished.out, finished.err) == (0, b"", b""), finished.report()
    sizes = sizes_of(load(launcher.scratch / "t.json"))
    assert {op for op, _, _ in sizes} == set(OPERATIONS) and len(sizes) == 16
    assert all(any(one.median_us for one in candidates) for candidates in sizes.values())
    assert not any(one.wrong for candidates in sizes.values() for one in candidates)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_an_interrupted_run_keeps_what_was_measured_and_is_resumed(launcher, signum):
    arguments = ["--ops", "allreduce", "--sizes", "64:64K:x2", "--worlds", "2", "--repeat", "5"]
    job = launcher.start("tune", *arguments, "--out", "t.json", module="horocache.tools")
    job.wait_for_file("t.json")  # after the first of two jobs
    job.process.send_signal(signum)
    finished = job.finish(30)
    assert finished.code == 128 + signum, finished.report()
    assert finished.stderr.count("\n") == 1 and "horocache: interrupted; t.json: " in finished.stderr
    before = sizes_of(load(launcher.scratch / "t.json"))
    assert 3 <= len(before) <= 11
    resumed = tune(launcher, *arguments, "--resume")
    assert resumed.code == 0 and "t.json: 11 measurements; HOROCACHE" in resumed.stdout, resumed.report()
    after = sizes_of(load(launcher.scratch / "t.json"))
    assert len(after) == 11 and {key: after[key] for key in before} == before


def test_a_killed_run_leaves_no_process_and_what_was_measured(launcher):
    arguments = ["--ops", "allreduce", "--sizes", "64:64K:x2", "--worlds", "2", "--repeat", "100"]
    job = launcher.start("tune", *arguments, "--out", "t.json", module="horocache.tools")
    job.wait_for_file("t.json")
    job.process.kill()
    assert job.finish(30).code == -signal.SIGKILL
    assert len(sizes_of(load(launcher.scratch / "t.json"))) >= 3
    wait_until_gone("processes of the run are", lambda: marked(job.mark))
    # Its folder may be left, which the next run removes; the fixture checks that.
    assert tune(launcher, *arguments, "--resume").code == 0


def test_a_rank_that_dies_in_each_job_is_named_and_ends_the_run(launcher):
    finished = tune(
        launcher, "--ops", "allreduce", "--sizes", "1K", "--worlds", "2", env={"HOROCACHE_FAULT": "data:1:20=kill"}
    )
    assert finished.code == 1, finished.report()
    assert "2 ranks on 1 host: " in finished.stderr and "was killed by signal 9" in finished.stderr
    assert "nothing was measured, and no table was written" in finished.stdout
    assert not (launcher.scratch / "t.json").exists()


def test_a_rank_that_stops_costs_only_its_part_of_the_budget(launcher):
    finished = tune(
        launcher,
        *("--ops", "allreduce", "--sizes", "1K", "--worlds", "2", "--budget", "12"),
        env={"HOROCACHE_FAULT": "data:1:60=stop"},
    )
    assert finished.code == 1 and finished.seconds < 40, finished.report()
    # The rank stops in an operation of a candidate, or in one by which the ranks compare their results.
    said = (
        "did not end within 3 s on rank 0|rank 0 waited 6 s for another rank|not over when its part of the budget was"
    )
    assert re.search(said, finished.stderr) and finished.stderr.startswith("horocache: 2 ranks on 1 host: ")


def test_a_backend_that_the_jobs_lack_is_an_error_and_the_others_are_measured(launcher):
    finished = tune(launcher, "--ops", "gather", "--sizes", "64", "--worlds", "2", "--backends", "program,shm/auto")
    assert finished.code == 1, finished.report()
    assert finished.stderr.startswith("horocache: program: the job does not have it; it has shm/auto, shm/oneshot")
    [auto, program] = sizes_of(load(launcher.scratch / "t.json"))["gather", 2, 64]
    assert auto.name == "shm/auto" and auto.median_us
    assert program.name == "program" and program.reason.startswith(
        "the job does not have it; it has shm/auto, shm/oneshot"
    )


def test_a_rank_does_not_tune(launcher):
    command = [sys.executable, "-m", "horocache.tools", "tune", "--out", "t.json"]
    finished = launcher.run("-np", "1", *command)
    assert finished.code == 2, finished.report()
    assert "tune starts its own ranks; run it by hand, and not with a launcher" in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        pytest.param(
            ["--layouts", "2x2"],
            2,
            "there is no mpiexec, which layouts of several hosts and the backend mpi need",
            marks=needs_no_mpiexec,
        ),
        pytest.param(["--backends", "mpi"], 2, "there is no mpiexec", marks=needs_no_mpiexec),
        (["--sizes", "1K:", "--worlds", "\x1b[31m"], 2, "'1K:' is not a size"),
        (["--worlds", "1\x1b[31m"], 2, r"'1\x1b[31m' is not a number of ranks"),
        (["--draw", "t.png", "--out"], 2, "expected one argument"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(launcher, arguments, code, text):
    finished = launcher.run(
        *("tune", "--out", "t.json", *arguments), module="horocache.tools", env={"PATH": "/nonexistent"}
    )
    assert (finished.code, finished.out) == (code, b""), finished.report()
    assert finished.stderr.count("\n") == 1 and text in finished.stderr
    assert not (launcher.scratch / "t.json").exists()
