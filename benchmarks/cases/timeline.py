"""Training steps with the timeline on and off, in turns within one job: the cost of recording."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.cases.training import Trainee, horocache_trainee
from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate

TITLE = "Training with a timeline"
ON, OFF = "horocache, timeline on", "timeline off"


def jobs(quick: bool) -> list[Job]:
    """The model of many tensors, one by one and in groups, and the model of more arithmetic.

    Turns are as short as possible, as the effect is smaller than the machine's fluctuations. They are long enough to
    make the cost of a new file, its memory and its pages, negligible.
    """
    budget_s = 4.0 if quick else 24.0
    settings = [("mlp", 0, 25)] if quick else [("mlp", 0, 25), ("mlp", 5, 25), ("cnn", 0, 3)]
    return [
        Job("timeline", 2, {"model": model, "groups": groups, "steps": steps, "budget_s": budget_s}, own_launcher=True)
        for model, groups, steps in settings
    ]


def measure(rank: Rank, model: str, groups: int, steps: int, budget_s: float) -> list[Series]:
    """Measure one model and optimizer; first reads a timeline back, to check it."""
    import horocache as hc

    trainee = horocache_trainee(rank, model, 32, groups)
    path = rank.directory / "timeline.json"
    _check(rank, trainee, path, groups)

    def train() -> None:
        for _ in range(steps):
            trainee.step()

    def train_and_write() -> None:
        train()
        hc.stop_timeline()  # timed: another thread writes most of the file, and not between the turns

    contestants = [
        Contestant(ON, train_and_write, partial(hc.start_timeline, path)),
        Contestant(OFF, train),
    ]
    times = alternate(rank.page, contestants, repetitions=500, budget_s=budget_s, warm_up=3)
    label = f"{trainee.label}, {groups} groups"
    return [
        Series(label, name, "ms", _per_step(one.seconds, steps), cpu_seconds=_per_step(one.cpu_seconds, steps))
        for name, one in times.items()
    ]


def _per_step(seconds: list[float], steps: int) -> list[float]:
    return [value / steps for value in seconds]


def _check(rank: Rank, trainee: Trainee, path: Path, groups: int) -> None:
    """Raise AssertionError if a timeline lacks an operation of the steps that it recorded."""
    import horocache as hc
    from horocache.observe import trace

    for _ in range(3):  # after these, the groups are final
        trainee.step()
    steps = 2
    rank.page.barrier()
    hc.start_timeline(path)
    for _ in range(steps):
        trainee.step()
    hc.stop_timeline()
    found = sum(trace.key_of(span) is not None for span in trace.load(trace.path_of_rank(path, rank.rank)).spans)
    tensors = sum(1 for _ in trainee.model.parameters())
    wanted = steps * (tensors if groups == 0 else groups)
    if found != wanted:
        raise AssertionError(f"rank {rank.rank}: the timeline has {found} operations of {steps} steps, not {wanted}")
