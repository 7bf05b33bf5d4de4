"""One-sided exchanges in processes: ranks that stop, die, leave, raise, or call in another order."""

import signal


def test_m10_a_stopped_rank_finds_its_call_left_and_joins_the_next_ones(launcher):
    finished = launcher.worker(3, "windows.py", "stopped")
    assert finished.code == 0, finished.report()
    first = [finished.reports_of(rank)["first"]["outcomes"] for rank in range(3)]
    # Without its first batch, the stopped rank has neither sent nor served anything.
    assert first[0] == first[2] and first[0][1] == "OWN_TIMEOUT", finished.report()
    assert first[0][0] == first[0][2] == "DELIVERED"
    assert first[1] == ["HOST_LEFT", "DELIVERED", "HOST_LEFT"]
    for rank in range(3):
        assert finished.reports_of(rank)["done"]["rows"] == 3 * 3 * 101  # every row has one outcome


def test_m11_without_early_exit_a_killed_rank_is_an_error_that_names_it(launcher):
    finished = launcher.worker(3, "windows.py", "killed", flags=["--grace", "20"])
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    for rank in (0, 1):
        call = finished.reports_of(rank)["call"]
        assert call["error"] == "PeerLostError", finished.report()
        assert f"rank 2 was lost before it answered 3 tokens of rank {rank} in layer 'layer'" in call["text"]
        assert finished.reports_of(rank)["taken"]["taken"] == [0, 1]


def test_m11_with_early_exit_exactly_the_tokens_of_a_killed_rank_are_dropped(launcher):
    finished = launcher.worker(3, "windows.py", "killed-drops", flags=["--grace", "20"])
    assert finished.code == 128 + signal.SIGKILL, finished.report()
    for rank in (0, 1):
        reports = finished.reports_of(rank)
        assert reports["call"]["error"] is None, finished.report()
        assert reports["outcomes"]["outcomes"] == ["DELIVERED", "DELIVERED", "LOST_RANK"], finished.report()


def test_a_rank_that_leaves_the_job_is_named(launcher):
    finished = launcher.worker(3, "windows.py", "left")
    for rank in (0, 2):
        call = finished.reports_of(rank)["call"]
        assert call["error"] == "ShutDownError", finished.report()
        assert "rank 1 has left the job, or closed the layer" in call["text"]


def test_an_error_of_one_rank_reaches_the_others_and_the_next_call_works(launcher):
    finished = launcher.worker(3, "windows.py", "raised")
    assert finished.code == 0, finished.report()
    assert finished.reports_of(1)["call"]["error"] == "ValueError", finished.report()
    assert finished.reports_of(1)["refused"]["error"] is None
    for rank in (0, 2):
        for what, text in [("call", "the expert is out of order"), ("refused", "a gate of NaN")]:
            line = finished.reports_of(rank)[what]
            assert line["error"] == "InputFailedError", finished.report()
            assert "rank 1 failed in layer 'layer'" in line["text"] and text in line["text"]


def test_ranks_that_call_layers_in_different_orders_are_named_with_both_layers(launcher):
    finished = launcher.worker(2, "windows.py", "crossed")
    for rank in (0, 1):
        call = finished.reports_of(rank)["call"]
        assert call["error"] == "MismatchError", finished.report()
        for word in ("rank 0", "rank 1", "layer 'a' (forward)", "layer 'b' (forward)", "same order"):
            assert word in call["text"], finished.report()


def test_a_rank_that_does_not_call_the_layer_is_reported_and_then_an_error(launcher):
    finished = launcher.worker(3, "windows.py", "stalled")
    for rank in (0, 2):
        call = finished.reports_of(rank)["call"]
        assert call["error"] == "StallError", finished.report()
        assert "rank 1 has not answered 3 tokens" in call["text"], finished.report()
        assert f"rank {rank} in layer 'layer' (forward), round 1, waits for the result of rank 1" in finished.stderr


def test_an_interrupt_ends_the_wait_and_reaches_the_other_rank(launcher):
    finished = launcher.worker(2, "windows.py", "interrupted")
    assert "interrupted" in finished.reports_of(0), finished.report()
    call = finished.reports_of(1)["call"]
    # The signal may come while rank 0 writes its batch, or while it waits.
    assert call["error"] in ("AbortedError", "InputFailedError"), finished.report()
    assert "rank 0 was interrupted" in call["text"] or "rank 0 failed" in call["text"], finished.report()
