"""A call of a mixture-of-experts layer by every exchange and by torch.distributed, with and without backward pass.

All exchanges give equal bits, and torch.distributed the same numbers up to rounding, or the case fails. The exchanges
take turns in the same processes. Beside the times stand, for a call of the slowest rank, the bytes that it writes into
windows and those that the model says; how often it slept; and the messages of the control plane.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import moe_setup
from benchmarks.figures import OURS, Series
from benchmarks.moe_setup import GLOO, Shape
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate, check

FORWARD, STEP = "forward", "forward and backward"
CONTROL = ("rounds", "control_bytes", "control_frames", "operations", "slow_rounds", "messages_sent")
WINDOWS = ("moe_bytes_written", "moe_sleeps")
_COUNTED_CALLS = 10
_TOLERANCE = 1e-4  # of torch.distributed's numbers, which it adds in another order


class Way:
    """One way to run the layer, with inputs and gradients of its own.

    Role: used by the rank's main thread.
    """

    def __init__(self, made: Any, shape: Shape, rank: int) -> None:
        random = torch.Generator().manual_seed(rank)
        self.layer = made
        self.x = torch.randn(shape.tokens, shape.hidden, generator=random, requires_grad=True)
        self._grad = torch.randn(shape.tokens, shape.hidden, generator=random)
        self.output = self._grad

    def prepare(self) -> None:
        """Forget the gradients."""
        self.x.grad = None
        self.layer.zero_grad()

    def forward(self) -> None:
        """Call the layer as for evaluation."""
        with torch.no_grad():
            self.output = self.layer(self.x)[0]

    def step(self) -> None:
        """Call the layer, and run its backward pass."""
        self.output = self.layer(self.x)[0]
        torch.autograd.backward(self.output, self._grad)

    def results(self) -> list[torch.Tensor]:
        """Return the output, and the gradients if there are any."""
        grads = [self.x.grad, *(each.grad for each in self.layer.parameters())]
        return [self.output.detach(), *(each for each in grads if each is not None)]


def measure(rank: Rank, shape: dict[str, int], routing: str, repetitions: int, budget_s: float) -> list[Series]:
    """Measure one shape and routing.

    Args:
        rank: this rank.
        shape: fields of Shape.
        routing: BALANCED or SKEWED.
        repetitions: of each way, at most.
        budget_s: for each of the two cases.
    """
    from horocache.moe.exchanges import exchange_names

    hvd = rank.horocache(**moe_setup.KNOBS)
    made = Shape(**shape)
    ways = {
        f"{OURS}, {name}": Way(moe_setup.layer(name, routing, made, rank.rank), made, rank.rank)
        for name in exchange_names()
    }
    first = next(iter(ways.values())).layer
    if rank.has("gloo"):
        baseline = moe_setup.TorchLayer(rank.gloo(), first.gate, list(first.experts.values()))
        ways[GLOO] = Way(baseline, made, rank.rank)
    series = []
    for case in (FORWARD, STEP):
        series += _compared(rank, hvd, f"{made}, {routing}", case, ways, repetitions, budget_s)
    by_model = model(first, routing, made, rank.rank, rank.size)
    for one in series:
        if one.detail["pass"] == FORWARD and one.impl != GLOO:
            one.counters |= by_model
    return series


def _compared(
    rank: Rank, hvd: Any, of: str, case: str, ways: dict[str, Way], repetitions: int, budget_s: float
) -> list[Series]:
    reference: list[torch.Tensor] = []
    contestants = []
    for name, way in ways.items():
        run = way.forward if case == FORWARD else way.step
        contestants.append(Contestant(name, run, way.prepare, wrong=partial(_wrong, name, way, reference)))
    wrong = check(rank.page, contestants)
    counted = {each.name: _counted(rank, hvd, each.run, each.prepare) for each in contestants}
    times = alternate(rank.page, contestants, repetitions=repetitions, budget_s=budget_s)
    series = []
    for name, one in times.items():
        detail = {"wrong": wrong[name], "of": of, "pass": case}
        full = f"{of}, {rank.size} ranks, {case}"
        series.append(
            Series(full, name, "ms", one.seconds, cpu_seconds=one.cpu_seconds, counters=counted[name], detail=detail)
        )
    return series


def _wrong(name: str, way: Way, reference: list[torch.Tensor]) -> int:
    """The number of elements that differ from those of the first way."""
    found = way.results()
    if not reference:
        reference.extend(each.clone() for each in found)
    tolerance = _TOLERANCE if name == GLOO else 0.0
    wrong = 0
    for mine, wanted in zip(found, reference, strict=True):
        wrong += int(((mine - wanted).abs() > tolerance * (1 + wanted.abs())).sum())
    return wrong


def _counted(rank: Rank, hvd: Any, run: Callable[[], object], prepare: Callable[[], None]) -> dict[str, float]:
    """Return what a call adds to the counters of this rank."""
    rank.page.barrier()
    before = hvd.metrics()
    rank.page.barrier()  # no rank begins before all have read their counters
    for _ in range(_COUNTED_CALLS):
        prepare()
        run()
    rank.page.barrier()
    after = hvd.metrics()
    rank.page.barrier()
    return {name: (after[name] - before[name]) / _COUNTED_CALLS for name in (*CONTROL, *WINDOWS)}


def model(layer: Any, routing: str, shape: Shape, rank: int, ranks: int) -> dict[str, float]:
    """Return the bytes that this rank writes in a forward call by the model, and how many with a row for each slot.

    A rank writes its batches, with one row for each token and rank that hosts any of its experts, and the results of
    the batches that it serves.
    """
    from horocache.torch.moe.dispatch import forward_layouts

    from horocache.moe.route import Route

    routes = [Route(moe_setup.choices(routing, shape, each), layer.expert_ranks, ranks) for each in range(ranks)]
    batch, result = forward_layouts(torch.float32, shape.hidden, shape.k)
    own, served = sum(routes[rank].rows), sum(route.rows[rank] for route in routes)
    own_slots, served_slots = sum(routes[rank].slots), sum(route.slots[rank] for route in routes)
    return {
        "model_bytes": float(own * batch.row_bytes + served * result.row_bytes),
        "model_bytes_by_slot": float(own_slots * batch.row_bytes + served_slots * result.row_bytes),
    }
