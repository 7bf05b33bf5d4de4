"""The step of a data-parallel training loop in time: layers, copies, sums and updates, of which none needs a core.

The device, the copies in each direction and the updates are threads that sleep, as a GPU computes without the host's
cores. The wire is a real allreduce, after which its thread sleeps until the time of the sum is over. So the schedule of
a step is real, on two cores and with any number of ranks, and its duration can be compared with a formula.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Times:
    """Times of one layer, in seconds.

    Attributes:
        forward: of its forward pass.
        backward: of its backward pass.
        wire: of the sum of its gradient over the ranks.
        copy: of its gradient to the host, and of the sum back to the device.
        update: of its weight.
        layers: their number.
    """

    forward: float = 4e-3
    backward: float = 8e-3
    wire: float = 6e-3
    copy: float = 0.5e-3
    update: float = 0.5e-3
    layers: int = 20

    @property
    def computing(self) -> float:
        """The time of a step that waits for nothing."""
        return self.layers * (self.forward + self.backward)


@dataclass(frozen=True)
class Design:
    """A way to bring the sums into one order.

    Attributes:
        name: of the design.
        lanes: the number of sums under way at a time, each waiting on a thread; 0: the daemons agree.
        waits: "all": the main thread waits for each sum; "copies": for each copy to the host, and for each ``lanes``
            sums; "": for nothing.
        descending: the last layer's gradient, which is ready first, is the first key.
        shared: the lanes share the wire's bandwidth.
        priority: the sums of front layers come first.
    """

    name: str
    lanes: int = 1
    waits: str = ""
    descending: bool = False
    shared: bool = False
    priority: bool = False

    def keys(self, layers: int) -> list[int]:
        """The layers in the order of their keys."""
        return list(reversed(range(layers))) if self.descending else list(range(layers))

    def expected(self, times: Times, steps: int = 12, counted: int = 8) -> float:
        """The duration of a step in a steady state, by simulation of the schedule."""
        schedule = Schedule()
        begins = [schedule.step(self, times) for _ in range(steps + 1)]
        schedule.run()
        return (begins[-1].end - begins[-1 - counted].end) / counted


@dataclass
class Task:
    """A part of a step that one resource runs when what it needs has ended.

    Attributes:
        duration: in seconds.
        resource: that runs it; ready tasks of a resource run by ``rank``, then as they became ready.
        missing: the number of needs that have not ended.
        end: its time.
    """

    duration: float
    resource: str
    rank: int = 0
    missing: int = 0
    followers: list[Task] = field(default_factory=list)
    end: float = -1.0


class Schedule:
    """Steps of a training loop, simulated.

    Role: made for one simulation.
    """

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._weights: list[Task] = []  # the last update of each layer
        self._main: Task | None = None  # after which the main thread issues more
        self._device: Task | None = None  # the last pass

    def _add(self, duration: float, resource: str, needs: Iterable[Task | None], rank: int = 0) -> Task:
        task = Task(duration, resource, rank)
        for need in needs:
            if need is not None:
                need.followers.append(task)
                task.missing += 1
        self._tasks.append(task)
        return task

    def step(self, design: Design, times: Times) -> Task:
        """Add a step; return its first forward pass."""
        passes: list[Task] = []
        for layer in range(times.layers):
            weight = self._weights[layer] if self._weights else None
            self._device = self._add(times.forward, "device", [weight, self._device, self._main])
            passes.append(self._device)
        gradients: dict[int, Task] = {}
        for layer in reversed(range(times.layers)):
            self._device = gradients[layer] = self._add(times.backward, "device", [self._device])
        self._sums(design, times, gradients)
        return passes[0]

    def _sums(self, design: Design, times: Times, gradients: dict[int, Task]) -> None:
        updates: dict[int, Task] = {}
        wires: list[Task] = []
        duration = times.wire * (design.lanes if design.shared else 1)
        for number, layer in enumerate(design.keys(times.layers)):
            copy = self._add(times.copy, "to host", [gradients[layer], self._main if design.waits else None])
            lane = number % design.lanes if design.lanes else 0
            chained = wires[number - design.lanes] if design.lanes and number >= design.lanes else None
            wire = self._add(duration, f"wire {lane}", [copy, chained], layer if design.priority else 0)
            wires.append(wire)
            back = self._add(times.copy, "to device", [wire])
            updates[layer] = self._add(times.update, "update", [back])
            if design.waits == "all":
                self._main = wire
            elif design.waits == "copies":
                barrier = wires[-design.lanes :] if (number + 1) % design.lanes == 0 else []
                self._main = self._add(0.0, f"main {number} {len(self._tasks)}", [copy, *barrier])
        self._weights = [updates[layer] for layer in range(times.layers)]

    def run(self) -> None:
        """Give each task its end."""
        counter = itertools.count()
        waiting: dict[str, list[tuple[int, int, Task]]] = {}
        busy: set[str] = set()
        events: list[tuple[float, int, Task]] = []

        def ready(task: Task) -> None:
            heapq.heappush(waiting.setdefault(task.resource, []), (task.rank, next(counter), task))

        def start(resource: str, now: float) -> None:
            if resource not in busy and waiting.get(resource):
                _, _, task = heapq.heappop(waiting[resource])
                busy.add(resource)
                heapq.heappush(events, (now + task.duration, next(counter), task))

        for task in self._tasks:
            if task.missing == 0:
                ready(task)
        for resource in list(waiting):
            start(resource, 0.0)
        while events:
            now, _, task = heapq.heappop(events)
            task.end = now
            busy.discard(task.resource)
            touched = {task.resource}
            for follower in task.followers:
                follower.missing -= 1
                if follower.missing == 0:
                    ready(follower)
                    touched.add(follower.resource)
            for resource in sorted(touched):
                start(resource, now)


DESIGNS = (
    Design("Funnel, ascending", waits="all"),
    Design("ConCom of 2, ascending, latency-bound", lanes=2, waits="copies"),
    Design("ConCom of 2, ascending, shared bandwidth", lanes=2, waits="copies", shared=True),
    Design("ConCom of 4, ascending, latency-bound", lanes=4, waits="copies"),
    Design("DepCha, ascending"),
    Design("Funnel, descending", waits="all", descending=True),
    Design("DepCha, descending", descending=True),
    Design("negotiated", lanes=0),
    Design("negotiated, front layers first", lanes=0, priority=True),
)
ROWS = (
    Times(wire=6e-3, copy=0.5e-3),
    Times(wire=6e-3, copy=6e-3),
    Times(wire=12e-3, copy=0.5e-3),
    Times(wire=2e-3, copy=0.5e-3),
)
