"""The common parts of the cases of mixtures of experts: routings, layers, torch.distributed, loads of late ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

BALANCED, SKEWED = "balanced", "skewed"
GLOO = "torch.distributed, gloo"
# The exchange `hierarchical` runs programs that a job has from its start only with this knob.
KNOBS = {"moe_exchange": "hierarchical"}
_ZIPF = 1.0  # the exponent: the chance of an expert is proportional to 1 / (its number + 1)
_MOST_UNITS = 100.0  # of a delay


@dataclass(frozen=True)
class Shape:
    """The size of a layer and of its calls."""

    tokens: int  # of a rank
    hidden: int
    inner: int  # of an expert
    experts: int = 8
    k: int = 2

    def __str__(self) -> str:
        return f"{self.tokens} tokens of {self.hidden}, {self.experts} experts of {self.inner}, k = {self.k}"


def choices(routing: str, shape: Shape, rank: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return the experts of a rank's tokens, int64 of shape ``(tokens, k)``; the same for equal arguments.

    Args:
        routing: BALANCED: all experts have the same chance. SKEWED: by Zipf's law, so that the first experts, which are
            on the first ranks, have most tokens.
        shape: of the call.
        rank: this rank.
        seed: of the random numbers.
    """
    random = np.random.default_rng([seed, rank])
    weight = -_ZIPF * np.log1p(np.arange(shape.experts)) if routing == SKEWED else np.zeros(shape.experts)
    scores = weight + random.gumbel(size=(shape.tokens, shape.experts))  # the k largest: k draws without replacement
    return np.argsort(-scores, axis=1, kind="stable")[:, : shape.k].copy()


class FixedGate(torch.nn.Module):
    """A gate whose routing was drawn before, so that a case measures the exchange and the experts."""

    def __init__(self, routing: str, shape: Shape, rank: int) -> None:
        super().__init__()
        from horocache.torch.moe import Routing

        experts = torch.from_numpy(choices(routing, shape, rank))
        self.weights = torch.nn.Parameter(torch.full(experts.shape, 1 / shape.k))
        counts = torch.bincount(experts.flatten(), minlength=shape.experts)
        self._routing = Routing(experts, self.weights, torch.zeros(()), counts, torch.zeros_like(counts))

    def forward(self, x: torch.Tensor, used_token: torch.Tensor | None = None) -> Any:
        """Return the routing, for any tokens."""
        return self._routing


def expert(shape: Shape) -> torch.nn.Module:
    """Return an expert of two layers."""
    up, down = torch.nn.Linear(shape.hidden, shape.inner), torch.nn.Linear(shape.inner, shape.hidden)
    return torch.nn.Sequential(up, torch.nn.GELU(), down)


def layer(exchange: str, routing: str, shape: Shape, rank: int, **options: Any) -> Any:
    """Return a ``MoELayer`` with a fixed routing, and the same weights for all exchanges."""
    from horocache.torch.moe import MoELayer

    torch.manual_seed(3)
    return MoELayer(
        shape.hidden,
        lambda: expert(shape),
        shape.experts,
        shape.k,
        gate=FixedGate(routing, shape, rank),
        exchange=exchange,
        **options,
    )


class TorchLayer(torch.nn.Module):
    """The same layer as programs for torch.distributed have it: slots by expert travel by ``all_to_all_single``.

    The ranks first exchange how many slots each expert gets, then the tokens, and then the outputs. A token travels
    once for each of its slots. Experts are spread evenly, so that their number is a multiple of that of the ranks.

    Args:
        dist: ``torch.distributed``, with its default group.
        gate: of the layer whose work this one does.
        experts: of this rank, in the order of their numbers.
    """

    def __init__(self, dist: Any, gate: FixedGate, experts: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.gate, self.experts = gate, torch.nn.ModuleList(experts)
        self._dist, self._ranks = dist, dist.get_world_size()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the weighted outputs of the experts."""
        routing = self.gate(x)
        k, slots = routing.topk_idx.shape[1], routing.topk_idx.flatten()
        order = slots.argsort(stable=True)
        sent = torch.bincount(slots, minlength=self._ranks * len(self.experts))
        received = torch.empty_like(sent)
        self._dist.all_to_all_single(received, sent)
        outgoing, incoming = (each.view(self._ranks, -1).sum(1).tolist() for each in (sent, received))
        tokens = order // k
        parts = _split(self._move(x[tokens], outgoing, incoming), received.tolist())  # by rank, then by expert
        outputs: list[torch.Tensor] = [x] * len(parts)
        for number, each in enumerate(self.experts):
            own = parts[number :: len(self.experts)]
            outputs[number :: len(self.experts)] = _split(each(torch.cat(own)), [len(part) for part in own])
        back = self._move(torch.cat(outputs), incoming, outgoing)
        weighted = back * routing.topk_weights.flatten()[order].unsqueeze(1)
        return torch.zeros_like(x).index_add(0, tokens, weighted), None, None

    def _move(self, rows: torch.Tensor, outgoing: list[int], incoming: list[int]) -> torch.Tensor:
        from torch.distributed.nn.functional import all_to_all_single

        into = rows.new_empty((sum(incoming), rows.shape[1]))
        moved: torch.Tensor = all_to_all_single(into, rows, incoming, outgoing)  # type: ignore[no-untyped-call]
        return moved


def _split(rows: torch.Tensor, lengths: list[int]) -> tuple[torch.Tensor, ...]:
    parts: tuple[torch.Tensor, ...] = torch.split(rows, lengths)
    return parts


def delays(ranks: int, late: int, calls: int, unit_s: float, seed: int = 0) -> npt.NDArray[np.float64]:
    """Return how late each rank comes to each call, in seconds, shape ``(calls, ranks)``.

    In each call ``late`` random ranks are late, by ``unit_s`` times a number of Pareto's distribution with the exponent
    1: half of them by 2 units or more, a tenth by 10 or more, and a hundredth by 100, which is the most.
    """
    random = np.random.default_rng([seed, ranks, late])
    found = np.zeros((calls, ranks))
    for call in found:
        chosen = random.permutation(ranks)[:late]
        call[chosen] = unit_s * np.minimum(1 / (1 - random.random(late)), _MOST_UNITS)
    return found
