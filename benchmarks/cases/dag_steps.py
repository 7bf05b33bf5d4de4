"""Steps of a training loop whose device, copies and updates sleep, in the designs of Mamidala et al. (2018).

The schedule, the engine and the collectives are real; see ``benchmarks/dag_model.py`` for what sleeps. The designs take
turns. Beside each duration stands that of the model.
"""

from __future__ import annotations

import time
from functools import partial
from threading import Lock
from typing import Any

from benchmarks import slow_wire
from benchmarks.dag_model import DESIGNS, Design, Times
from benchmarks.figures import Series
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate, check

_BYTES_PER_S = 125e6  # of the wire: one gigabit


class Sleeper:
    """A resource that does one thing after the other, each for a given time.

    Role: used by one thread.
    """

    def __init__(self) -> None:
        self._end = 0.0

    def run(self, seconds: float) -> None:
        """Be busy. A next call that comes at once begins when this ends, not when the thread has woken up."""
        now = time.perf_counter()
        begin = self._end if now - self._end < 1e-3 else now
        self._end = begin + seconds
        time.sleep(max(0.0, self._end - now))


class Loop:
    """A training loop in one design.

    Role: owned by the rank's main thread, which pushes the steps.
    """

    def __init__(self, rank: Rank, design: Design, times: Times, steps: int) -> None:
        import numpy as np

        from horocache.dag import Engine

        self._design, self._times, self._steps = design, times, steps
        lanes = max(1, design.lanes)
        self._engine = Engine({"device": 1, "to host": 1, "to device": 1, "update": 1, "comm": lanes}, name="loop")
        self._lanes = [self._engine.lane() for _ in range(design.lanes)]
        self._sleepers = {name: Sleeper() for name in self._engine.threads}
        layers = range(times.layers)
        self._weights = [self._engine.var(f"weight {layer}") for layer in layers]
        self._gradients = [self._engine.var(f"gradient {layer}") for layer in layers]
        self._sums = [self._engine.var(f"sum {layer}") for layer in layers]
        self._chain = self._engine.var("activations")
        self._hosts = [np.full(int(times.wire * _BYTES_PER_S) // 8, float(rank.rank)) for _ in layers]
        self._mean = (rank.size - 1) / 2
        self._wire = Lock()
        self.seconds: list[float] = []

    def run(self) -> None:
        """Run the steps, and note the mean duration of a step of the second half."""
        begins: list[float] = []
        for _ in range(self._steps):
            self._engine.push(lambda: begins.append(time.perf_counter()), [self._weights[0]], [self._chain])
            self._step()
        self._engine.wait_all()
        counted = self._steps // 2
        self.seconds.append((begins[-1] - begins[-1 - counted]) / counted)

    def wrong(self) -> int:
        """The number of elements that are not the mean over the ranks."""
        return sum(int((host != self._mean).sum()) for host in self._hosts)

    def close(self) -> None:
        """End the engine."""
        self._engine.close()

    def _sleep(self, queue: str, seconds: float, reads: list[Any], writes: list[Any], name: str) -> None:
        self._engine.push(partial(self._sleepers[queue].run, seconds), reads, writes, queue=queue, name=name)

    def _step(self) -> None:
        design, times = self._design, self._times
        for layer in range(times.layers):
            self._sleep("device", times.forward, [self._weights[layer]], [self._chain], f"forward {layer}")
        for layer in reversed(range(times.layers)):
            self._sleep("device", times.backward, [], [self._chain, self._gradients[layer]], f"backward {layer}")
        keys = design.keys(times.layers)
        for number, layer in enumerate(keys):
            host = self._hosts[layer]
            self._sleep("to host", times.copy, [self._gradients[layer]], [host], f"copy {layer}")
            if design.waits:
                self._engine.wait(host)
            self._reduce(number, layer)
            if design.waits == "all":
                self._engine.wait(host)
            elif design.waits == "copies" and (number + 1) % design.lanes == 0:
                self._engine.wait(*(self._hosts[key] for key in keys[number + 1 - design.lanes : number + 1]))
            self._sleep("to device", times.copy, [host], [self._sums[layer]], f"copy back {layer}")
            self._sleep("update", times.update, [self._sums[layer]], [self._weights[layer]], f"update {layer}")

    def _reduce(self, number: int, layer: int) -> None:
        import horocache as hc

        host, name = self._hosts[layer], f"gradient {layer}"
        if not self._lanes:
            priority = -layer if self._design.priority else 0
            self._engine.collective(
                lambda: hc.allreduce_async_(host, name=name, backend=slow_wire.NAME, priority=priority),
                writes=[host],
                queue="comm",
                name=f"allreduce {layer}",
            )
            return
        began: list[float] = []

        def start() -> int:
            began.append(time.perf_counter())
            return hc.allreduce_async_(host, name=name)

        self._engine.collective(
            start,
            writes=[host],
            lane=self._lanes[number % len(self._lanes)],
            then=lambda _: self._hold_wire(began[0]),
            queue="comm",
            name=f"allreduce {layer}",
        )

    def _hold_wire(self, began: float) -> None:
        """Wait until the time of the sum is over."""
        if self._design.shared:
            with self._wire:
                time.sleep(self._times.wire)
        else:
            time.sleep(max(0.0, began + self._times.wire - time.perf_counter()))


def measure(
    rank: Rank, rows: list[dict[str, Any]], designs: list[str], steps: int, repetitions: int, budget_s: float
) -> list[Series]:
    """Measure each design with each row of times.

    Args:
        rank: this rank.
        rows: fields of Times.
        designs: names of designs.
        steps: of one run.
        repetitions: runs of each design, at most.
        budget_s: for the runs of one row.
    """
    wire = slow_wire.register()
    rank.horocache(fusion_threshold=0)
    series = []
    for row in rows:
        times = Times(**row)
        wire.latency_s = times.wire
        series += _row(rank, times, [one for one in DESIGNS if one.name in designs], steps, repetitions, budget_s)
    return series


def _row(
    rank: Rank, times: Times, designs: list[Design], steps: int, repetitions: int, budget_s: float
) -> list[Series]:
    loops = {design.name: Loop(rank, design, times, steps) for design in designs}
    contestants = [Contestant(name, loop.run, wrong=loop.wrong) for name, loop in loops.items()]
    check(rank.page, contestants)
    alternate(rank.page, contestants, repetitions=repetitions, budget_s=budget_s, warm_up=0, at_least=2)
    case = f"{rank.size} ranks, c = {times.wire * 1e3:g} ms, d = {times.copy * 1e3:g} ms"
    series = []
    for design in designs:
        loop = loops[design.name]
        loop.close()
        detail = {
            "expected_s": design.expected(times),
            "computing_s": times.computing,
            "wire_s": times.wire,
            "copy_s": times.copy,
            "layers": times.layers,
        }
        series.append(Series(case, design.name, "ms", loop.seconds[1:], detail=detail))  # the first run was the check
    return series
