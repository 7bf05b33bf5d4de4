"""Contestants take turns: A B A B ..., in the same processes, so that disturbances of the machine hit all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.page import Page


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Contestant:
    """One implementation of the measured operation."""

    name: str
    run: Callable[[], object]  # the timed part
    prepare: Callable[[], None] = _nothing  # runs before it, untimed
    inner: int = 1  # runs per repetition; the repetition's time is their mean
    wrong: Callable[[], int] | None = None  # the number of wrong elements after prepare and one run


@dataclass
class Times:
    """The times of one contestant on this rank: one entry per repetition, each for one run."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)  # of all threads of the process


class WrongResultError(AssertionError):
    """A contestant computed a wrong result, so its speed is meaningless."""


def check(page: Page, contestants: Sequence[Contestant]) -> dict[str, int]:
    """Run every contestant once and count wrong elements. Raises WrongResultError."""
    counts = {}
    for contestant in contestants:
        contestant.prepare()
        page.barrier()
        contestant.run()
        page.barrier()
        if contestant.wrong is None:
            continue
        counts[contestant.name] = contestant.wrong()
        if counts[contestant.name]:
            raise WrongResultError(
                f"{contestant.name} on rank {page.rank}: {counts[contestant.name]} elements are wrong"
            )
    return counts


def alternate(
    page: Page,
    contestants: Sequence[Contestant],
    *,
    repetitions: int,
    budget_s: float,
    warm_up: int = 2,
    at_least: int = 3,
) -> dict[str, Times]:
    """Measure each contestant's times on this rank.

    Args:
        page: lets the ranks start every timed part together.
        contestants: take turns; the first one of a repetition rotates.
        repetitions: the most repetitions.
        budget_s: seconds after which no repetition begins, if there are ``at_least`` repetitions.
        warm_up: untimed repetitions before the first one.
        at_least: the fewest repetitions.
    """
    times = {contestant.name: Times() for contestant in contestants}
    begin = time.perf_counter()
    for repetition in range(-warm_up, repetitions):
        late = time.perf_counter() - begin > budget_s and repetition >= at_least
        if page.agree(int(late)):
            break
        turn = repetition % len(contestants)
        for contestant in (*contestants[turn:], *contestants[:turn]):
            seconds, cpu_seconds = _once(page, contestant)
            if repetition >= 0:
                times[contestant.name].seconds.append(seconds / contestant.inner)
                times[contestant.name].cpu_seconds.append(cpu_seconds / contestant.inner)
    return times


def _once(page: Page, contestant: Contestant) -> tuple[float, float]:
    run = contestant.run
    contestant.prepare()
    page.barrier()
    cpu = time.process_time()
    start = time.perf_counter()
    for _ in range(contestant.inner):
        run()
    elapsed = time.perf_counter() - start
    cpu = time.process_time() - cpu
    page.barrier()  # the next contestant's preparation must not disturb a slow rank
    return elapsed, cpu
