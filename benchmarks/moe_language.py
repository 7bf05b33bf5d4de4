"""A small language model with mixtures of experts, its text, and the loss of batches on the way.

The text is Python's own documentation of its language, which every Python ships as ``pydoc_data.topics``: 450 KB of
English prose and examples. The model predicts the next byte.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional

_HELD_OUT = 0.05  # of the text, at its end
_BYTES = 256


def text() -> torch.Tensor:
    """Return the text, uint8."""
    import pydoc_data.topics

    topics = "\n".join(body for _, body in sorted(pydoc_data.topics.topics.items()))
    return torch.frombuffer(bytearray(topics.encode()), dtype=torch.uint8)


@dataclass(frozen=True)
class Size:
    """The size of the model, and of its training."""

    context: int = 64
    hidden: int = 64
    heads: int = 4
    blocks: int = 2
    experts: int = 8
    k: int = 2
    batch: int = 8  # sequences of one rank in a step
    steps: int = 300
    rate: float = 3e-3
    seed: int = 0


class LosesBatches:
    """An exchange that loses batches for other ranks at random, as those of a late rank are lost.

    The host serves the batch, and its owner does not take the result. Which ones are lost follows from the seed, the
    rank and the number of the call alone, so that a run can be repeated. A rank's batch for itself is never lost.
    Repetitions and backward passes lose nothing; see :class:`horocache.moe.exchanges.Exchange`.

    Args:
        options: of the layer.
        kind: the exchange that moves the batches.
        fraction: of a rank's slots, if all ranks have equally many for every rank.
        seed: of the random numbers.
        calls: how many calls may lose batches; later ones, such as those of an evaluation, do not.

    Raises:
        ValueError: the fraction is more than the slots for other ranks.
    """

    def __init__(self, options: Any, kind: str, fraction: float, seed: int, calls: int) -> None:
        from horocache.moe.exchanges import EarlyExit, make_exchange

        self._inner = make_exchange(kind, dataclasses.replace(options, early_exit=EarlyExit()))
        self._own, size = options.process_set.rank(), options.process_set.size()
        most = (size - 1) / size
        if fraction > most:
            raise ValueError(f"{size} ranks lose at most {most:.2f} of their slots, not {fraction}")
        self._chance = fraction / most if fraction else 0.0
        self._random = np.random.default_rng([seed, self._own])
        self._calls = calls

    def run(self, call: Any) -> Any:
        """Run one exchange."""
        from horocache.moe.exchanges import Outcome

        if call.lossless or self._calls == 0:
            return self._inner.run(call)
        self._calls -= 1
        lost = self._random.random(len(call.rows)) < self._chance
        lost[self._own] = False
        report = self._inner.run(_Partly(call, lost))
        for peer in np.flatnonzero(lost):
            if call.rows[peer]:
                report.outcomes[peer] = Outcome.OWN_TIMEOUT
        return report

    def fail(self, why: BaseException) -> None:
        """Run one exchange that fails on all ranks."""
        self._inner.fail(why)

    def close(self) -> None:
        """Give the memory back."""
        self._inner.close()


class _Partly:
    """A call without the results that are lost; otherwise the call that it has."""

    def __init__(self, call: Any, lost: Any) -> None:
        self._call, self._lost = call, lost
        self.rows, self.lossless = call.rows, call.lossless
        self.row_bytes, self.result_row_bytes = call.row_bytes, call.result_row_bytes
        self.pack, self.serve = call.pack, call.serve

    def take(self, peer: int, result: Any) -> None:
        """Pass on a result that came."""
        if not self._lost[peer]:
            self._call.take(peer, result)


class Block(torch.nn.Module):
    """Causal attention, and a mixture of experts."""

    def __init__(self, size: Size, **options: Any) -> None:
        super().__init__()
        from horocache.torch.moe import MoELayer

        self._heads = size.heads
        self.first, self.second = torch.nn.LayerNorm(size.hidden), torch.nn.LayerNorm(size.hidden)
        self.mix = torch.nn.Linear(size.hidden, 3 * size.hidden)
        self.out = torch.nn.Linear(size.hidden, size.hidden)
        self.experts = MoELayer(
            size.hidden, lambda: _expert(size.hidden), size.experts, size.k, drop_tokens=False, **options
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the hidden states and the auxiliary loss of the gate."""
        batch, length, hidden = x.shape
        parts = self.mix(self.first(x)).view(batch, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        output, loss, _ = self.experts(self.second(x))
        return x + output, loss


class Model(torch.nn.Module):
    """Predicts the next byte of each position."""

    def __init__(self, size: Size, **options: Any) -> None:
        super().__init__()
        self.bytes = torch.nn.Embedding(_BYTES, size.hidden)
        self.places = torch.nn.Embedding(size.context, size.hidden)
        self.layers = [Block(size, **options) for _ in range(size.blocks)]
        self.blocks = torch.nn.ModuleList(self.layers)
        self.norm = torch.nn.LayerNorm(size.hidden)
        self.head = torch.nn.Linear(size.hidden, _BYTES)

    def loss(self, sequences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean loss of a byte, in nats, and the auxiliary loss; sequences have a context and one byte."""
        x = self.bytes(sequences[:, :-1]) + self.places.weight
        auxiliary = torch.zeros(())
        for block in self.layers:
            x, loss = block(x)
            auxiliary = auxiliary + loss
        scores = self.head(self.norm(x))
        return functional.cross_entropy(scores.flatten(0, 1), sequences[:, 1:].flatten()), auxiliary


@dataclass
class Curve:
    """The course of a training.

    Attributes:
        training: the loss of each step, the mean over the ranks, in nats per byte.
        held_out: the loss on text that is not trained, at the end.
        sent: the slots of all ranks.
        dropped: those that were lost on the way.
        waited_s: seconds in which forward calls waited for the slowest other rank, the mean over the ranks.
    """

    training: list[float] = field(default_factory=list)
    held_out: float = float("nan")
    sent: float = 0.0
    dropped: float = 0.0
    waited_s: float = 0.0


def train(size: Size, name: str, **options: Any) -> Curve:
    """Train a model on all ranks of the job: equal arguments on equally many ranks give equal bits.

    Args:
        size: of model and training.
        name: of the model, unlike those of others in this job.
        options: of the layers.
    """
    import horocache.torch as hvd

    torch.manual_seed(size.seed)
    model = Model(size, **options)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=size.rate), model.named_parameters(prefix=name)
    )
    random = torch.Generator().manual_seed(size.seed + hvd.rank())
    whole = text().long()
    split = int(len(whole) * (1 - _HELD_OUT))
    curve = Curve()
    for _ in range(size.steps):
        optimizer.zero_grad()
        loss, auxiliary = model.loss(_sequences(whole[:split], size, random))
        torch.autograd.backward(loss + auxiliary)
        optimizer.step()
        curve.training.append(_mean(loss, f"{name} loss"))
    counted = [block.experts.statistics() for block in model.layers]
    curve.sent = _mean(torch.tensor(float(sum(each.sent for each in counted))), f"{name} sent") * hvd.size()
    lost = float(sum(sum(each.dropped.values()) for each in counted))
    curve.dropped = _mean(torch.tensor(lost), f"{name} dropped") * hvd.size()
    waited = sum(max(each.waited) for each in counted)
    curve.waited_s = _mean(torch.tensor(waited), f"{name} waited")
    curve.held_out = _held_out(model, whole[split:], size, name)
    for block in model.layers:
        block.experts.close()
    return curve


def _expert(hidden: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(hidden, 2 * hidden), torch.nn.GELU(), torch.nn.Linear(2 * hidden, hidden)
    )


def _sequences(whole: torch.Tensor, size: Size, random: torch.Generator) -> torch.Tensor:
    starts = torch.randint(len(whole) - size.context - 1, (size.batch,), generator=random)
    return torch.stack([whole[start : start + size.context + 1] for start in starts.tolist()])


def _held_out(model: Model, whole: torch.Tensor, size: Size, name: str) -> float:
    """The loss on equally spaced sequences; each rank takes its share of them."""
    import horocache.torch as hvd

    model.eval()
    starts = torch.linspace(0, len(whole) - size.context - 1, 8 * size.batch * hvd.size()).long()[
        hvd.rank() :: hvd.size()
    ]
    losses = []
    with torch.no_grad():
        for some in torch.split(starts, size.batch):
            losses.append(model.loss(torch.stack([whole[start : start + size.context + 1] for start in some]))[0])
    return _mean(torch.stack(losses).mean(), f"{name} held out")


def _mean(value: torch.Tensor, name: str) -> float:
    import horocache.torch as hvd

    return float(hvd.allreduce(value.detach().double(), op=hvd.Average, name=name))
