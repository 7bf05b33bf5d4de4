"""``horocache bench control``: the cost of agreement, on tensors that are too small to cost anything to move."""

import json
import statistics
import sys
import time
from argparse import Namespace
from dataclasses import asdict, dataclass

import numpy as np

import horocache as hc

_HEADINGS = ("tensors", "cache", "step", "tensor", "rounds", "slow", "hits", "control", "fused ops", "#wrong")
_UNITS = ("/step", "", "(us)", "(us)", "/step", "/step", "/step", "(B/step)", "/step", "")
_LAYOUT = "{:>8} {:>6} {:>10} {:>9} {:>8} {:>8} {:>10} {:>10} {:>10} {:>7}"
_COUNTED = ("rounds", "slow_rounds", "cache_hits", "control_bytes", "fused_operations")


@dataclass(frozen=True)
class Row:
    """One line of the table: medians of the time, means of the counters, on rank 0."""

    tensors: int
    cache: str
    step_us: float
    per_tensor_us: float
    rounds: float
    slow_rounds: float
    cache_hits: float
    control_bytes: float
    fused_operations: float
    wrong: int

    def __str__(self) -> str:
        times = (f"{self.step_us:.1f}", f"{self.per_tensor_us:.3f}")
        counts = (self.rounds, self.slow_rounds, self.cache_hits, self.control_bytes, self.fused_operations)
        return _LAYOUT.format(self.tensors, self.cache, *times, *(f"{count:.1f}" for count in counts), self.wrong)


def run(options: Namespace) -> int:
    """Measure each number of tensors with the cache and without; return 1 if a value was wrong."""
    wrong = 0
    headed = options.json
    for tensors in options.tensors:
        for cache in ("on", "off"):
            # The cache must hold all tensors. Otherwise evictions would be measured instead of hits.
            hc.init(cache_capacity=0 if cache == "off" else max(1024, 2 * tensors))
            try:
                row = _measure(tensors, cache, options)
                first = hc.rank() == 0
                ranks = hc.size()
            finally:
                hc.shutdown()
            wrong += row.wrong
            if first and not headed:
                sys.stdout.write(f"# control plane, {ranks} ranks, 4-byte tensors\n{_heading()}\n")
                headed = True
            if first:
                line = json.dumps({"op": "control", "ranks": ranks, **asdict(row)}) if options.json else str(row)
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
    return 1 if wrong else 0


def _heading() -> str:
    return "\n".join("#" + _LAYOUT.format(*texts)[1:] for texts in (_HEADINGS, _UNITS))


def _measure(tensors: int, cache: str, options: Namespace) -> Row:
    data = [np.zeros(1, np.float32) for _ in range(tensors)]
    names = [f"control.{index}" for index in range(tensors)]

    def step() -> None:
        handles = [hc.allreduce_async_(one, op=hc.Sum, name=name) for one, name in zip(data, names, strict=True)]
        for handle in handles:
            hc.synchronize(handle)

    for index, one in enumerate(data):
        one[0] = index + hc.rank()
    step()
    ranks = hc.size()
    wrong = sum(int(one[0] != index * ranks + ranks * (ranks - 1) // 2) for index, one in enumerate(data))
    # Checked before the timed steps, so that no new name is negotiated while a slower rank still counts.
    wrong = int(hc.allreduce(np.array(wrong, np.int64), op=hc.Sum, name="wrong"))
    for one in data:
        one.fill(0)
    for _ in range(options.warmup):
        step()
    hc.barrier()
    step()  # counters are published shortly after a wait ends: after this step, they include the barrier
    before = hc.metrics()
    times = []
    for _ in range(options.iters):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    grown = hc.metrics().since(before)
    hc.barrier()
    per_step = {name: grown[name] / options.iters for name in _COUNTED}
    step_us = statistics.median(times) * 1e6
    return Row(
        tensors=tensors,
        cache=cache,
        step_us=step_us,
        per_tensor_us=step_us / tensors,
        wrong=wrong,
        **per_step,
    )
