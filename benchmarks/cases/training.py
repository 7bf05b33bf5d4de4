"""Training steps: DistributedOptimizer, DistributedDataParallel over gloo, and no communication at all (the ceiling).

Same seeds, same synthetic data, a model of its own for each contestant; losses of those that communicate must agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.figures import Series
from benchmarks.job import Job
from benchmarks.peers import Rank
from benchmarks.timing import Contestant, alternate

TITLE = "Training, synthetic data"
CEILING = "no communication"
_GROUPS = 5
_BATCHES = 8  # of synthetic data, used in turns


def jobs(quick: bool) -> list[Job]:
    """A model of many small tensors and one of fewer, larger ones."""
    budget_s = 3.0 if quick else 14.0
    models = [("mlp", 32, 8), ("cnn", 32, 2)]
    return [
        Job("training", 2, {"model": model, "batch": batch, "steps": steps, "budget_s": budget_s}, timeout_s=180.0)
        for model, batch, steps in models
    ]


@dataclass
class Trainee:
    """One contestant's model, optimizer and losses."""

    name: str
    model: Any
    optimizer: Any
    data: list[tuple[Any, Any]]
    losses: list[float] = field(default_factory=list)

    def step(self) -> None:
        """One training step."""
        import torch

        inputs, labels = self.data[len(self.losses) % len(self.data)]
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.losses.append(loss.item())


def measure(rank: Rank, model: str, batch: int, steps: int, budget_s: float) -> list[Series]:
    """Blocks of ``steps`` steps, alternated."""
    trainees = _trainees(rank, model, batch)
    contestants = [Contestant(one.name, one.step, inner=steps) for one in trainees]
    times = alternate(rank.page, contestants, repetitions=16, budget_s=budget_s, warm_up=2)
    _check_losses(rank, trainees)
    tensors = sum(1 for _ in trainees[0].model.parameters())
    count = sum(parameter.numel() for parameter in trainees[0].model.parameters())
    label = f"{'MLP' if model == 'mlp' else 'CNN'} of {tensors} tensors, {4 * count / 1e6:.1f} MB, batch {batch}"
    samples = float(batch * rank.size)
    return [Series(label, name, "samples/s", one.seconds, samples, one.cpu_seconds) for name, one in times.items()]


def _trainees(rank: Rank, model: str, batch: int) -> list[Trainee]:
    import torch

    from benchmarks.cases import models

    torch.set_num_threads(1)
    shape = (batch, 64) if model == "mlp" else (batch, 3, 32, 32)
    generator = torch.Generator().manual_seed(1000 + rank.rank)
    data = [
        (torch.randn(shape, generator=generator), torch.randint(0, 10, (batch,), generator=generator))
        for _ in range(_BATCHES)
    ]

    def fresh() -> tuple[Any, Any]:
        torch.manual_seed(7)
        made = models.mlp() if model == "mlp" else models.cnn()
        return made, torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)

    makers: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {}
    if rank.has("horocache"):
        makers["horocache"] = lambda net, optimizer: _horocache(rank, net, optimizer, 0)
        makers[f"horocache, {_GROUPS} groups"] = lambda net, optimizer: _horocache(rank, net, optimizer, _GROUPS)
    if rank.has("gloo"):
        makers["gloo, DDP"] = lambda net, optimizer: _ddp(rank, net, optimizer)
    makers[CEILING] = lambda net, optimizer: (net, optimizer)
    return [Trainee(name, *make(*fresh()), data) for name, make in makers.items()]


def _horocache(rank: Rank, model: Any, optimizer: Any, groups: int) -> tuple[Any, Any]:
    hvd = rank.horocache()
    # Two optimizers live in this process, so their tensors need names of their own.
    named = [(f"{groups} groups.{name}", parameter) for name, parameter in model.named_parameters()]
    hvd.broadcast_parameters(named, root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=named, num_groups=groups)


def _ddp(rank: Rank, model: Any, optimizer: Any) -> tuple[Any, Any]:
    from torch.nn.parallel import DistributedDataParallel

    rank.gloo()
    return DistributedDataParallel(model), optimizer


def _check_losses(rank: Rank, trainees: list[Trainee]) -> None:
    """Raises AssertionError where two communicating contestants' losses part, or the ceiling's do not."""
    together = [one for one in trainees if one.name != CEILING]
    for one in together[1:]:
        first = together[0]
        for step, (ours, theirs) in enumerate(zip(first.losses, one.losses, strict=True)):
            if not math.isclose(ours, theirs, rel_tol=1e-3, abs_tol=1e-4):
                raise AssertionError(
                    f"rank {rank.rank}, step {step}: the loss is {ours} with {first.name} and {theirs} with {one.name}"
                )
