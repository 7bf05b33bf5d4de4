"""The order of contestants, their number of repetitions, and barriers between ranks."""

import threading
from pathlib import Path

import pytest

from benchmarks.page import Page
from benchmarks.timing import Contestant, WrongResultError, alternate, check


def recorder(name: str, log: list[str], **options: object) -> Contestant:
    return Contestant(name, lambda: log.append(name), **options)  # type: ignore[arg-type]


def test_contestants_alternate_and_the_first_one_rotates(tmp_path: Path) -> None:
    log: list[str] = []
    contestants = [recorder(name, log) for name in "ab"]
    times = alternate(Page(tmp_path / "p", 0, 1), contestants, repetitions=3, budget_s=60.0, warm_up=1)
    assert "".join(log) == "ba" + "ab" + "ba" + "ab"
    assert {name: (len(one.seconds), len(one.cpu_seconds)) for name, one in times.items()} == {"a": (3, 3), "b": (3, 3)}


def test_preparation_comes_before_every_timed_part(tmp_path: Path) -> None:
    log: list[str] = []
    contestant = recorder("run", log, prepare=lambda: log.append("prepare"), inner=2)
    alternate(Page(tmp_path / "p", 0, 1), [contestant], repetitions=2, budget_s=60.0, warm_up=0)
    assert log == ["prepare", "run", "run"] * 2


def test_an_exhausted_budget_still_gives_the_least_number_of_repetitions(tmp_path: Path) -> None:
    page = Page(tmp_path / "p", 0, 1)
    times = alternate(page, [recorder("a", [])], repetitions=50, budget_s=-1.0, at_least=4)
    assert len(times["a"].seconds) == 4


def test_a_wrong_result_names_contestant_and_rank(tmp_path: Path) -> None:
    wrong = Contestant("gloo", lambda: None, wrong=lambda: 5)
    with pytest.raises(WrongResultError, match="gloo on rank 0: 5 elements"):
        check(Page(tmp_path / "p", 0, 1), [wrong])


def test_all_ranks_stop_at_the_same_repetition(tmp_path: Path) -> None:
    size, counts = 3, {}

    def rank_main(rank: int) -> None:
        page = Page(tmp_path / "p", rank, size)
        # Only rank 0's budget is used up at once; the other ranks would go on without rank 0.
        budget_s = -1.0 if rank == 0 else 1e9
        times = alternate(page, [recorder("a", [])], repetitions=500, budget_s=budget_s, at_least=3)
        counts[rank] = len(times["a"].seconds)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {0: 3, 1: 3, 2: 3}


def test_a_barrier_names_the_ranks_that_do_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.page._TIMEOUT_S", 0.01)
    with pytest.raises(TimeoutError, match="ranks 1, 2 did not come"):
        Page(tmp_path / "p", 0, 3).barrier()
