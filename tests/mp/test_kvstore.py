"""Ranks that fail while stores and engines work: K6, K16 and K19 of key-value stores, and D9 of the engine."""

import re
import signal
import time

import psutil
import pytest

from .harness import worker_command

SHORT = ["--stall-check-time-seconds", "0.3", "--stall-shutdown-time-seconds", "1.2"]
KILLED = r"rank 1 \(pid \d+ on this host\) was killed by signal 9"


@pytest.mark.parametrize("kind", ["negotiated", "depcha", "concom", "dist_sync"])
def test_k16_a_killed_rank_is_named_on_every_survivor(launcher, kind):
    finished = launcher.worker(3, "stores.py", "killed", kind, deadline_s=60)
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    ended_at = float((launcher.scratch / "ended_at").read_text())
    for rank in (0, 2):
        reports = finished.reports_of(rank)
        assert reports["pending"]["error"] == "PeerLostError", finished.report()
        assert re.search(KILLED, reports["pending"]["text"]), finished.report()
        assert reports["pending"]["at"] - ended_at < 10.0, finished.report()
        assert reports["next"]["error"] is not None, finished.report()
        assert reports["dead nodes"]["value"] == 1, finished.report()


@pytest.mark.parametrize("kind", ["negotiated", "depcha", "dist_sync"])
def test_k16_a_rank_that_stops_for_a_while_delays_the_sums_and_changes_nothing(launcher, kind):
    job = launcher.start(*worker_command(3, "stores.py", "stopped", kind))
    rank = psutil.Process(int(job.wait_for_file("stopping")))
    while rank.status() != psutil.STATUS_STOPPED:  # the job's own limit ends a rank that does not stop
        time.sleep(0.01)
    rank.resume()
    finished = job.finish(60)
    assert finished.code == 0, finished.report()
    assert all(finished.reports_of(rank)["sums"]["value"] == [3.0] for rank in range(3)), finished.report()


@pytest.mark.parametrize("kind", ["negotiated", "depcha"])
def test_k6_k19_a_key_that_a_rank_omits_is_an_error_that_names_it(launcher, kind):
    finished = launcher.worker(3, "stores.py", "omitted", kind, flags=SHORT, deadline_s=60)
    for rank in (0, 2):
        report = finished.reports_of(rank)["wait"]
        assert report["error"] in ("StallError", "ShutDownError"), finished.report()
        assert "kvstore0" in report["text"] and "rank 1" in report["text"], finished.report()


def test_d9_a_rank_that_is_killed_with_a_deep_graph_pending_is_named_by_every_wait(launcher):
    finished = launcher.worker(3, "stores.py", "deep", "3000", deadline_s=60)
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    ended_at = float((launcher.scratch / "ended_at").read_text())
    for rank in (0, 2):
        reports = finished.reports_of(rank)
        assert reports["y"]["error"] == "PeerLostError", finished.report()
        assert re.search(KILLED, reports["y"]["text"]), finished.report()
        assert reports["y"]["at"] - ended_at < 10.0, finished.report()
        assert reports["after"]["value"] == 7.0, finished.report()
