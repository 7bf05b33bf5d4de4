"""All gradients of a real model at once: the shapes of ResNet-50, EfficientNet-B0 and VGG19, last layer first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.architectures import MODELS, load
from benchmarks.cases.burst import counters_per_step, make_burst
from benchmarks.figures import Figure, Series
from benchmarks.job import Job
from benchmarks.peers import Many, Rank, buckets, each_async, in_buckets
from benchmarks.report import Table, plain
from benchmarks.timing import Contestant, alternate, check

TITLE = "Gradients of a model, submitted asynchronously, then synchronised"
_BUCKET_BYTES = 25 << 20  # DistributedDataParallel's default
_GROUPS = 5
_SHARED = "horocache, shared"
_COUNTERS = ("rounds", "fused_operations", "control_bytes", "bytes_copied", "payload_bytes", "sleeps", "wakeups")


def jobs(quick: bool) -> list[Job]:
    """One job per model."""
    models = ["ResNet-50"] if quick else list(MODELS)
    budget_s = 2.0 if quick else 7.0
    return [Job("gradients", 2, {"model": model, "budget_s": budget_s}) for model in models]


def measure(rank: Rank, model: str, budget_s: float) -> list[Series]:
    """Measure tensors one by one, in groups, in DDP's buckets, and one by one over MPI."""
    shapes = list(reversed(load(model)))
    burst = make_burst([shape for _, shape in shapes], rank.rank, rank.size)
    size = 4 * sum(math.prod(shape) for _, shape in shapes)
    found: dict[str, Many] = {}
    for impl, run in each_async(rank, [name for name, _ in shapes]).items():
        if impl == "horocache":
            found[impl] = run
            found[_SHARED] = run
            found[f"horocache, {_GROUPS} groups"] = _grouped(rank.horocache(), model)
        elif impl == "mpi4py":
            found["mpi4py, each tensor"] = run
        else:
            found["gloo, 25-MiB buckets"] = in_buckets(rank, _BUCKET_BYTES)
    shared = replace(burst, tensors=_shared_like(rank, burst.tensors)) if _SHARED in found else burst
    contestants = []
    for impl, run in found.items():
        own = shared if impl == _SHARED else burst
        contestants.append(
            Contestant(impl, lambda run=run, own=own: run(own.tensors), own.prepare, wrong=own.wrong)  # type: ignore[misc]
        )
    check(rank.page, contestants)
    label = f"{model}, {len(shapes)} tensors, {size // 10**6} MB"
    counters = _counters(rank, contestants)
    times = alternate(rank.page, contestants, repetitions=32, budget_s=budget_s, warm_up=1)
    series = []
    for impl, one in times.items():
        detail = {"bytes": size, "model": model}
        series.append(Series(label, impl, "GB/s", one.seconds, float(size), one.cpu_seconds, detail=detail))
        series[-1].counters = counters.get(impl, {})
    return series


def _shared_like(rank: Rank, tensors: Sequence[Any]) -> list[Any]:
    """Return tensors of the same shapes, one after the other in shared memory, as an optimizer lays gradients out."""
    hvd = rank.horocache()
    whole, at, parts = hvd.empty_shared(sum(tensor.numel() for tensor in tensors)), 0, []
    for tensor in tensors:
        parts.append(whole[at : at + tensor.numel()].view(tensor.shape))
        at += tensor.numel()
    return parts


def _grouped(hvd: Any, model: str) -> Many:
    """Return a function that reduces groups of about equal bytes, as DistributedOptimizer(num_groups=5) at first."""

    def run(tensors: Sequence[Any]) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        groups = buckets(tensors, math.ceil(size / _GROUPS))
        handles = [
            hvd.grouped_allreduce_async_(group, name=f"{model} group {i}", op=hvd.Sum) for i, group in enumerate(groups)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    return run


def _counters(rank: Rank, contestants: Sequence[Contestant]) -> dict[str, dict[str, float]]:
    """Return the counters of one step of each of horocache's contestants, in the cached state."""
    found = {}
    for contestant in contestants:
        if not contestant.name.startswith("horocache"):
            continue
        import horocache as hc

        contestant.prepare()
        contestant.run()
        rank.page.barrier()
        contestant.prepare()
        rank.page.barrier()
        before = hc.metrics()
        contestant.run()
        rank.page.barrier()
        found[contestant.name] = counters_per_step(before, hc.metrics(), 1, _COUNTERS)
    return found


def tables(figures: Sequence[Figure]) -> list[Table]:
    """Return the speeds, the milliseconds that they mean, and the counters."""
    counted = [figure for figure in figures if figure.counters]
    times = Table(
        "Milliseconds for all gradients (from the medians)",
        ["model", "implementation", "ms"],
        [[f.case, f.impl, f"{f.detail['bytes'] / f.median / 1e6:.2f}"] for f in figures],
    )
    result = [plain(TITLE, figures), times]
    if counted:
        columns = ["case", "implementation", *(name.replace("_", " ") for name in _COUNTERS), "copied / payload"]
        rows = [[f.case, f.impl, *(f"{f.counters[name]:,.0f}" for name in _COUNTERS), _copies(f)] for f in counted]
        result.append(Table("Counters of one step (the largest of the ranks)", columns, rows))
    return result


def _copies(figure: Figure) -> str:
    payload = figure.counters["payload_bytes"]
    return f"{figure.counters['bytes_copied'] / payload:.2f}" if payload else ""
