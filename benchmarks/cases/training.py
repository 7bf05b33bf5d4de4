"""Training steps of DistributedOptimizer and of DistributedDataParallel over gloo, with two upper limits.

The limits are ranks that only wait for each other in each step, and ranks without any communication. All contestants
have the same seeds, the same synthetic data, and a model of their own. The losses of those that communicate must agree.
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
BARRIER = "barrier only"
_GROUPS = {"mlp": [0, 5, 1, 2, 10], "cnn": [0, 5]}
_BATCHES = 8  # number of batches of synthetic data, used in turns


def jobs(quick: bool) -> list[Job]:
    """A model of many small tensors and one of fewer, larger ones."""
    models = [("mlp", 32, 4, 48.0), ("cnn", 32, 1, 40.0)]
    return [
        Job(
            "training",
            2,
            {
                "model": model,
                "batch": batch,
                "steps": steps,
                "budget_s": 3.0 if quick else budget_s,
                "groups": _GROUPS["cnn" if quick else model],
            },
            timeout_s=180.0,
        )
        for model, batch, steps, budget_s in models
    ]


def _alone() -> None:
    pass


@dataclass
class Trainee:
    """One contestant's model, optimizer and losses."""

    name: str
    model: Any
    optimizer: Any
    data: list[tuple[Any, Any]]
    meet: Callable[[], None] = _alone  # called before the optimizer's step
    losses: list[float] = field(default_factory=list)

    def step(self) -> None:
        """One training step."""
        import torch

        inputs, labels = self.data[len(self.losses) % len(self.data)]
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.meet()
        self.optimizer.step()
        self.losses.append(loss.item())

    @property
    def label(self) -> str:
        """The kind of model, its size, and the batch size."""
        sizes = [parameter.numel() for parameter in self.model.parameters()]
        batch, kind = len(self.data[0][1]), "MLP" if self.data[0][0].dim() == 2 else "CNN"
        return f"{kind} of {len(sizes)} tensors, {4 * sum(sizes) / 1e6:.1f} MB, batch {batch}"


def measure(rank: Rank, model: str, batch: int, steps: int, budget_s: float, groups: list[int]) -> list[Series]:
    """Measure blocks of ``steps`` steps, alternated."""
    trainees = _trainees(rank, model, batch, groups)
    for one in trainees:
        rank.page.barrier()
        one.step()
    _check_losses(rank, trainees)
    contestants = [Contestant(one.name, one.step, inner=steps) for one in trainees]
    times = alternate(rank.page, contestants, repetitions=32, budget_s=budget_s, warm_up=2)
    _check_losses(rank, trainees)
    label, samples = trainees[0].label, float(batch * rank.size)
    return [Series(label, name, "samples/s", one.seconds, samples, one.cpu_seconds) for name, one in times.items()]


def _untouched(model: Any) -> None:
    pass


def horocache_trainee(
    rank: Rank, model: str, batch: int, groups: int, before: Callable[[Any], None] = _untouched
) -> Trainee:
    """Return a contestant that trains with DistributedOptimizer; first calls ``before`` with the model."""
    net, optimizer = _fresh(model)
    before(net)
    return Trainee(_name(groups), *_horocache(rank, net, optimizer, groups), _data(rank, model, batch))


def plain_trainee(rank: Rank, model: str, batch: int, before: Callable[[Any], None] = _untouched) -> Trainee:
    """Return a contestant that trains without communication; first calls ``before`` with the model."""
    net, optimizer = _fresh(model)
    before(net)
    return Trainee(CEILING, net, optimizer, _data(rank, model, batch))


def _barrier_trainee(rank: Rank, model: str, batch: int) -> Trainee:
    """Return a contestant whose ranks wait for each other's gradients in each step, but exchange none."""
    return Trainee(BARRIER, *_fresh(model), _data(rank, model, batch), rank.page.barrier)


def _trainees(rank: Rank, model: str, batch: int, groups: list[int]) -> list[Trainee]:
    import torch

    torch.set_num_threads(1)
    trainees = [horocache_trainee(rank, model, batch, number) for number in groups] if rank.has("horocache") else []
    if rank.has("gloo"):
        trainees.append(Trainee("gloo, DDP", *ddp(rank, *_fresh(model)), _data(rank, model, batch)))
    return [*trainees, _barrier_trainee(rank, model, batch), plain_trainee(rank, model, batch)]


def _name(groups: int) -> str:
    return f"horocache, {groups} group{'s' * (groups > 1)}" if groups else "horocache"


def _data(rank: Rank, model: str, batch: int) -> list[tuple[Any, Any]]:
    import torch

    shape = (batch, 64) if model == "mlp" else (batch, 3, 32, 32)
    generator = torch.Generator().manual_seed(1000 + rank.rank)
    return [
        (torch.randn(shape, generator=generator), torch.randint(0, 10, (batch,), generator=generator))
        for _ in range(_BATCHES)
    ]


def _fresh(model: str) -> tuple[Any, Any]:
    import torch

    from benchmarks.cases import models

    torch.manual_seed(7)
    made = models.mlp() if model == "mlp" else models.cnn()
    return made, torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)


def _horocache(rank: Rank, model: Any, optimizer: Any, groups: int) -> tuple[Any, Any]:
    hvd = rank.horocache()
    # Several optimizers live in this process, so each needs separate names for its tensors.
    named = [(f"{groups} groups.{name}", parameter) for name, parameter in model.named_parameters()]
    hvd.broadcast_parameters(named, root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=named, num_groups=groups)


def ddp(rank: Rank, model: Any, optimizer: Any) -> tuple[Any, Any]:
    from torch.nn.parallel import DistributedDataParallel

    rank.gloo()
    return DistributedDataParallel(model), optimizer


def _check_losses(rank: Rank, trainees: list[Trainee]) -> None:
    """Raise AssertionError if the losses of two communicating contestants differ."""
    together = [one for one in trainees if one.name not in (CEILING, BARRIER)]
    for one in together[1:]:
        first = together[0]
        for step, (ours, theirs) in enumerate(zip(first.losses, one.losses, strict=True)):
            if not math.isclose(ours, theirs, rel_tol=1e-3, abs_tol=1e-4):
                raise AssertionError(
                    f"rank {rank.rank}, step {step}: the loss is {ours} with {first.name} and {theirs} with {one.name}"
                )
