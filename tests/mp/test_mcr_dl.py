"""M12: a rank of a job with mixed backends is killed."""

import re
import signal

import pytest

SECONDS = 10.0  # within which every survivor must have its error


@pytest.mark.parametrize("backends", ["shm,gloo", "gloo,shm", "gloo"])
def test_m12_a_killed_rank_is_named_on_every_survivor_and_nothing_is_left(launcher, needs_torch, backends):
    finished = launcher.worker(4, "mixed_victim.py", backends, deadline_s=60)
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    ended_at = float((launcher.scratch / "ended_at").read_text())
    for rank in (0, 2, 3):
        reports = finished.reports_of(rank)
        failed = reports["pending"]
        assert failed["error"] == "PeerLostError", finished.report()
        assert re.search(r"rank 1 \(pid \d+ on this host\) was killed by signal 9", failed["text"]), finished.report()
        assert failed["at"] - ended_at < SECONDS, finished.report()
        assert reports["next"]["error"] is not None, finished.report()
