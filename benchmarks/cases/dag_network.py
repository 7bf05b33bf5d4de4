"""Training steps of real networks on small images: layer by layer on an engine, against waiting for all gradients.

The wire is shared memory, or as slow as a multiple of the time that the computation takes: beside it, the cores are
free for the computation, as they are beside a network card. All ways train the same network on the same images, and
have the same parameters afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import slow_wire
from benchmarks.figures import Series
from benchmarks.networks import CLASSES, NETWORKS
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate, check

SYNCHRONIZED = "DistributedOptimizer"
GROUPED = "DistributedOptimizer, num_groups=auto"
LAYERWISE = "layer by layer"
FRONT_FIRST = "layer by layer, front layers first"
STORE = "KVStore, "  # and its type
_STORES = ("funnel", "depcha", "negotiated", "dist_sync")
_LATENCY_S = 0.25e-3
_RATE = 1e-3  # of learning: so small that rounding does not grow
_TOLERANCE = 0.02  # of how far a parameter's elements have moved, at most
_CHECKED_STEPS = 2  # with more of them, differences of rounding grow in these networks


class Data:
    """A rank's images, the same in each step, and a fresh network."""

    def __init__(self, rank: Rank, network: str, width: float, batch: int) -> None:
        import torch

        random = torch.Generator().manual_seed(rank.rank)
        self.images = torch.randn(batch, 3, 32, 32, generator=random)
        self.targets = torch.randint(CLASSES, (batch,), generator=random)
        self.loss = torch.nn.CrossEntropyLoss()
        self._network, self._width = network, width

    def blocks(self) -> list[Any]:
        """The network with its first parameters."""
        import torch

        torch.manual_seed(1)
        return NETWORKS[self._network](self._width)

    def backward(self, model: Any) -> None:
        """Compute all gradients."""
        self.loss(model(self.images), self.targets).backward()


class Way:
    """One way to train.

    Attributes:
        parameters: of the network.
        step: pushes or runs a step.
        finish: waits until all steps have ended.
        close: ends what it has started.
    """

    def __init__(self, blocks: list[Any], step: Callable[[], None]) -> None:
        self.parameters = [each for block in blocks for each in block.parameters()]
        self.step = step
        self.finish: Callable[[], None] = lambda: None
        self.close: Callable[[], None] = lambda: None


def _sgd(parameters: list[Any]) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=_RATE, momentum=0.9)


def _optimizer(hvd: Any, data: Data, num_groups: int | str, name: str) -> Way:
    import torch

    blocks = data.blocks()
    model = torch.nn.Sequential(*blocks)
    optimizer = hvd.DistributedOptimizer(
        _sgd(list(model.parameters())), model.named_parameters(prefix=name), num_groups=num_groups
    )

    def step() -> None:
        optimizer.zero_grad()
        data.backward(model)
        optimizer.step()

    return Way(blocks, step)


def _layerwise(data: Data, prioritize: bool, name: str) -> Way:
    from horocache.dag.training import LayerwiseTrainer

    blocks = data.blocks()
    trainer = LayerwiseTrainer(blocks, data.loss, _sgd, name=name, prioritize=prioritize)
    way = Way(blocks, lambda: trainer.step(data.images, data.targets))
    way.finish, way.close = trainer.finish, trainer.engine.close
    return way


def _store(rank: Rank, data: Data, type_: str) -> Way:
    """A program for MXNet's store: all gradients are pushed in the order of the layers, then awaited."""
    import torch

    from horocache import kvstore

    blocks = data.blocks()
    model = torch.nn.Sequential(*blocks)
    parameters = list(model.parameters())
    optimizer = _sgd(parameters)
    store = kvstore.create(type_, blocking=False)
    keys = list(range(len(parameters)))
    store.init(keys, [each.detach() for each in parameters])

    def step() -> None:
        for each in parameters:
            if each.grad is not None:
                each.grad.zero_()
        data.backward(model)
        gradients: list[Any] = [each.grad for each in parameters]
        for key, gradient in zip(keys, gradients, strict=True):
            store.pushpull(key, gradient)
        store.wait(*gradients)
        for gradient in gradients:
            gradient.div_(rank.size)
        optimizer.step()

    way = Way(blocks, step)
    way.close = store.close
    return way


def measure(
    rank: Rank,
    network: str,
    width: float,
    batch: int,
    wires: list[float],
    steps: int,
    repetitions: int,
    budget_s: float,
) -> list[Series]:
    """Measure the ways to train a network.

    Args:
        rank: this rank.
        network: a name of NETWORKS.
        width: factor of its channels.
        batch: images of this rank in a step.
        wires: how long the sums take, in times of the computation; 0: shared memory as it is.
        steps: of one run.
        repetitions: the most runs of each way, for each wire.
        budget_s: seconds for the runs of one wire.
    """
    wire = slow_wire.register()
    data = Data(rank, network, width, batch)
    series = []
    for times in wires:
        hvd = rank.horocache(select=f"allreduce={slow_wire.NAME}" if times else "")
        computing_s = _computing_s(hvd, data)
        if times:
            wire.latency_s, wire.bytes_per_s = _LATENCY_S, _bytes(data) / (times * computing_s)
        ways = {
            SYNCHRONIZED: _optimizer(hvd, data, 0, "single"),
            GROUPED: _optimizer(hvd, data, "auto", "grouped"),
            LAYERWISE: _layerwise(data, False, "ready"),
            FRONT_FIRST: _layerwise(data, True, "front"),
            **{STORE + type_: _store(rank, data, type_) for type_ in _STORES if not times or type_ != "dist_sync"},
        }
        case = f"{network}, {rank.size} ranks, {f'wire {times:g} x computation' if times else 'shared memory'}"
        detail = {"network": network, "wire": times, "computing_s": computing_s, "batch": batch}
        first = [each.detach() for block in data.blocks() for each in block.parameters()]
        series += _compared(rank, case, ways, first, steps, repetitions, budget_s, detail)
        wire.latency_s, wire.bytes_per_s = 0.0, float("inf")
    return series


def _bytes(data: Data) -> int:
    return sum(each.numel() * 4 for block in data.blocks() for each in block.parameters())


def _computing_s(hvd: Any, data: Data) -> float:
    """The time of a step without sums, of the slowest rank."""
    import torch

    model = torch.nn.Sequential(*data.blocks())
    seconds = []
    for _ in range(4):
        begin = time.perf_counter()
        data.backward(model)
        seconds.append(time.perf_counter() - begin)
    mine = torch.tensor(sorted(seconds[1:])[1])
    return float(hvd.allreduce(mine, op=hvd.Max, name="computing", backend="shm"))


def different(parameters: list[Any], reference: list[Any], first: list[Any]) -> int:
    """The number of parameters' elements that are not those of another way, beyond rounding.

    Args:
        parameters: of a way, after some steps.
        reference: those of the other way.
        first: those before the first step.
    """
    found = 0
    for mine, other, before in zip(parameters, reference, first, strict=True):
        moved = float((other - before).abs().max())
        found += int(((mine - other).abs() > _TOLERANCE * moved + 1e-7).sum())
    return found


def _compared(
    rank: Rank,
    case: str,
    ways: dict[str, Way],
    first: list[Any],
    steps: int,
    repetitions: int,
    budget_s: float,
    detail: dict[str, Any],
) -> list[Series]:
    reference: list[Any] = []  # the parameters of the first way

    def run(way: Way, steps: int) -> None:
        for _ in range(steps):
            way.step()
        way.finish()

    def wrong(way: Way) -> int:
        if not reference:
            reference.extend(each.detach().clone() for each in way.parameters)
        return different(way.parameters, reference, first)

    def checked(name: str, way: Way) -> Contestant:
        return Contestant(name, lambda: run(way, _CHECKED_STEPS), wrong=lambda: wrong(way))

    check(rank.page, [checked(name, way) for name, way in ways.items()])
    contestants = [Contestant(name, partial(run, way, steps)) for name, way in ways.items()]
    times = alternate(rank.page, contestants, repetitions=repetitions, budget_s=budget_s, warm_up=0, at_least=2)
    for way in ways.values():
        way.close()
    return [
        Series(
            case,
            name,
            "ms",
            [seconds / steps for seconds in one.seconds],
            cpu_seconds=[seconds / steps for seconds in one.cpu_seconds],
            detail=detail,
        )
        for name, one in times.items()
    ]
