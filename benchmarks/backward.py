"""A backward pass without its arithmetic: the gradients of a real model become ready one after the other.

Sleeping replaces the computation, as on a processor whose accelerator computes: the cores are free for the daemon. Each
gradient is written before it is submitted, so that its values are as warm in the caches as after a real pass.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.architectures import Shape

ALONE = -1  # in place of a number of groups: nothing is reduced
Split = Callable[[Sequence[int], Sequence[int], int], list[list[int]]]


def ready_fractions(shapes: Sequence[Sequence[int]]) -> list[float]:
    """Return when each gradient is ready, as a fraction of the backward pass.

    Every weight takes equally long: such networks are built with half the resolution where they have twice the
    channels. Vectors (biases, scales) are by-products of the weight that comes after them.

    Args:
        shapes: in the order of the backward pass.
    """
    weights = sum(len(shape) > 1 for shape in shapes)
    fractions, done = [], 0
    for shape in shapes:
        done += len(shape) > 1
        fractions.append(done / weights if weights else 1.0)
    return fractions


@dataclass
class Pass:
    """The gradients of a backward pass, in its order, and when each is ready; the same for all frameworks."""

    shapes: Sequence[Shape]
    seconds: float  # computing time of the pass
    rank: int
    size: int
    _begun: float = 0.0

    def __post_init__(self) -> None:
        self._fractions = ready_fractions([shape for _, shape in self.shapes])

    def begin(self) -> None:
        """Start the clock of the backward pass."""
        self._begun = time.perf_counter()

    def compute(self, number: int) -> None:
        """Sleep until the gradient ``number`` is ready."""
        left = self._begun + self._fractions[number] * self.seconds - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def value(self, number: int) -> float:
        """Return the value of all elements of this rank's gradient ``number``."""
        return float(number % 97 + self.rank)

    def average(self, number: int) -> float:
        """Return the value of all elements of the reduced gradient ``number``; exact in float32."""
        return number % 97 + (self.size - 1) / 2


@dataclass(frozen=True)
class Way:
    """One way to reduce: untimed preparation, the timed run, and the number of wrong elements after the run."""

    prepare: Callable[[], None]
    run: Callable[[], None]
    wrong: Callable[[], int]


class NumpyPasses:
    """horocache's own interface, as a framework without a binding would use it."""

    def __init__(self, plan: Pass, split: Split) -> None:
        import numpy as np

        self._plan, self._split = plan, split
        self.gradients = [np.empty(shape, np.float32) for _, shape in plan.shapes]

    def way(self, groups: int) -> Way:
        """Reduce in ``groups`` groups; 0: each array by itself; ALONE: not at all."""
        last = {members[-1]: members for members in self.members(groups)}
        return Way(lambda: None, functools.partial(self._run, groups, last), functools.partial(self._wrong, groups))

    def members(self, groups: int) -> list[list[int]]:
        numbers = range(len(self.gradients))
        if groups == ALONE:
            return []
        if groups == 0:
            return [[number] for number in numbers]
        return self._split(numbers, [array.nbytes for array in self.gradients], groups)

    def _run(self, groups: int, last: Mapping[int, list[int]]) -> None:
        import horocache as hc

        plan, arrays = self._plan, self.gradients
        handles: list[Any] = []
        plan.begin()
        for number, array in enumerate(arrays):
            array.fill(plan.value(number))
            plan.compute(number)
            if number not in last:
                continue
            name = f"{groups} groups, {plan.shapes[number][0]}"
            if groups == 0:
                handles.append(hc.allreduce_async_(array, name=name, op=hc.Average))
            else:
                members = [arrays[member] for member in last[number]]
                handles.append(hc.grouped_allreduce_async_(members, name=name, op=hc.Average))
        for handle in handles:
            hc.synchronize(handle)

    def _wrong(self, groups: int) -> int:
        wanted = self._plan.value if groups == ALONE else self._plan.average
        return sum(_other_than(wanted(number), array) for number, array in enumerate(self.gradients))


class TorchPasses:
    """DistributedOptimizer. The ways share the memory of their gradients, as there are many ways.

    The step of the optimizer is left out: it is the same arithmetic in all ways.
    """

    def __init__(self, plan: Pass) -> None:
        import torch

        torch.set_num_threads(1)
        self._plan = plan
        self.gradients = [torch.empty(tuple(shape)) for _, shape in plan.shapes]
        self._weights = [torch.zeros_like(buffer) for buffer in self.gradients]
        self._layer = _layer_class(self._produce)
        self._loss: Any = None

    def way(self, groups: int) -> Way:
        """Reduce in ``groups`` groups; 0: each gradient by itself; ALONE: not at all."""
        import horocache.torch as hvd
        import torch

        parameters = [torch.nn.Parameter(weight) for weight in self._weights]
        forward = list(reversed(range(len(parameters))))
        optimizer: Any = torch.optim.SGD([parameters[number] for number in forward], lr=0.0)
        if groups != ALONE:
            named = [(f"{groups} groups.{self._plan.shapes[number][0]}", parameters[number]) for number in forward]
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, num_groups=groups)

        def prepare() -> None:
            optimizer.zero_grad()
            signal = torch.zeros(1)
            for number in forward:
                signal = self._layer.apply(signal, parameters[number], number)
            self._loss = signal.sum()

        def run() -> None:
            self._plan.begin()
            self._loss.backward()
            if groups != ALONE:
                optimizer.synchronize()

        def wrong() -> int:
            wanted = self._plan.value if groups == ALONE else self._plan.average
            return sum(_other_than(wanted(number), p.grad) for number, p in enumerate(parameters))

        return Way(prepare, run, wrong)

    def _produce(self, number: int) -> Any:
        buffer = self.gradients[number]
        buffer.fill_(self._plan.value(number))
        self._plan.compute(number)
        # Another tensor over the same memory, which autograd takes as the gradient without a copy.
        return buffer.view_as(buffer)


def _other_than(value: float, tensor: Any) -> int:
    return int((tensor != value).sum())


def _layer_class(produce: Callable[[int], Any]) -> Any:
    """Return a layer that passes its input on; the result of ``produce`` becomes its parameter's gradient."""
    import torch

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, signal: Any, parameter: Any, number: int) -> Any:
            context.number = number
            return signal.view_as(signal)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient, produce(context.number), None

    return Layer


def passes(framework: str, plan: Pass, split: Split) -> NumpyPasses | TorchPasses:
    """Return the passes of a framework.

    Args:
        framework: ``torch`` or ``numpy``.
        plan: the gradients and when each is ready.
        split: divides NumPy's gradients into groups; torch's groups follow the knob ``group_by``.
    """
    return TorchPasses(plan) if framework == "torch" else NumpyPasses(plan, split)
