"""One call of a layer: the exchange of tokens, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from horocache.core.process_set import ProcessSet
from horocache.errors import MismatchError, UnsupportedError
from horocache.moe.exchanges import Exchange, Outcome, Report
from horocache.moe.exchanges.exchange import Memory
from horocache.moe.route import Route

from .expert_batch import ExpertBatch
from .experts import ExpertBank
from .wire import Layout, gather

__all__ = ["TYPES", "Plan", "exchange_tokens", "forward_layouts", "wide_type"]

# The element types of tokens. A batch carries the position, so the order is that of all ranks.
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """Return the element type of weights and sums for tokens of an element type: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def forward_layouts(dtype: torch.dtype, hidden: int, k: int) -> tuple[Layout, Layout]:
    """Return the layouts of a forward batch and of its result."""
    batch = Layout((torch.int32, 1 + k), (wide_type(dtype), k), (dtype, hidden))
    return batch, Layout((dtype, hidden))


def _backward_layouts(dtype: torch.dtype, hidden: int, k: int) -> tuple[Layout, Layout]:
    return Layout((dtype, hidden)), Layout((dtype, hidden), (wide_type(dtype), k))


@dataclass(eq=False)
class Plan:
    """The plan of a call, and its report.

    Attributes:
        name: of the layer.
        exchange: of the layer.
        process_set: of the layer.
        bank: the experts of this rank.
        route: of this rank's tokens.
        drops: True if forward calls of the layer may lose batches; equal on all ranks.
        repeat: by rank: the batches to deliver in a repetition of an earlier call. None: the exchange decides.
        report: of the forward exchange, once it has run.
        has_graph: True if a backward pass of the call may follow.
    """

    name: str
    exchange: Exchange
    process_set: ProcessSet
    bank: ExpertBank
    route: Route
    drops: bool
    repeat: list[bool] | None
    report: Report | None = None
    has_graph: bool = False

    @cached_property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters of this rank's experts that are trained."""
        return [each for each in self.bank.parameters() if each.requires_grad]

    @property
    def delivered(self) -> list[bool]:
        """By rank: whether the batch for it was delivered."""
        assert self.report is not None
        return [outcome is Outcome.DELIVERED for outcome in self.report.outcomes]

    def tokens(self, peer: int, like: torch.Tensor) -> torch.Tensor:
        """Return the tokens of the batch for a rank, on the device of another tensor."""
        return torch.from_numpy(self.route.tokens[peer]).to(like.device)


class _Forward:
    """The forward exchange; see :class:`horocache.moe.exchanges.Call`."""

    def __init__(self, plan: Plan, x: torch.Tensor, weights: torch.Tensor, keep_graphs: bool) -> None:
        repeat = plan.repeat
        self.rows: Sequence[int] = [
            number if repeat is None or repeat[peer] else 0 for peer, number in enumerate(plan.route.rows)
        ]
        self.lossless = repeat is not None and plan.drops  # equal on all ranks of a call
        self._layout, self._result_layout = forward_layouts(x.dtype, x.shape[1], weights.shape[1])
        self.row_bytes = self._layout.row_bytes
        self.result_row_bytes = self._result_layout.row_bytes
        self.graphs: dict[int, ExpertBatch] = {}
        self._plan, self._x, self._weights, self._keep_graphs = plan, x, weights, keep_graphs
        self._kind = 2 * TYPES.index(x.dtype) + keep_graphs
        self._results: dict[int, torch.Tensor] = {}

    def pack(self, peer: int, memory: Memory) -> None:
        """Write the batch for ``peer``."""
        numbers, weights, x = self._layout.new(memory)
        experts = self._plan.route.experts_for(peer)
        tokens = self._plan.tokens(peer, self._x)
        numbers[:, 0] = self._kind
        numbers[:, 1:] = torch.from_numpy(experts)
        gather(self._weights, tokens, weights)
        weights[torch.from_numpy(experts < 0)] = 0
        gather(self._x, tokens, x)

    def serve(self, peer: int, rows: int, batch: Memory, result: Memory) -> None:
        """Run the experts on the batch of ``peer``."""
        numbers, weights, x = self._layout.open(batch)
        self._check_kind(peer, int(numbers[0, 0]))
        device = self._x.device
        with torch.set_grad_enabled(self._keep_graphs), _plain_saving(), _no_autocast_cache():
            served = ExpertBatch(self._plan.bank, x.to(device), weights.to(device), numbers[:, 1:].numpy())
        self._result_layout.new(result)[0].copy_(served.result())
        if self._keep_graphs:
            self.graphs[peer] = served

    def take(self, peer: int, result: Memory) -> None:
        """Keep the result of ``peer`` until all have come."""
        self._results[peer] = self._result_layout.open(result)[0].to(self._x.device, copy=True)

    def output(self) -> torch.Tensor:
        """Return the sum of the results, added in the order of ranks."""
        return _add_up(self._plan, self._results, self._x)

    def _check_kind(self, peer: int, kind: int) -> None:
        if kind == self._kind:
            return
        ranks = self._plan.process_set.ranks
        own = self._plan.process_set.rank()
        raise MismatchError(
            f"layer {self._plan.name!r}: rank {ranks[peer]} sent {_kind_text(kind)}, but rank {ranks[own]} has "
            f"{_kind_text(self._kind)}; all ranks must call the layer with one element type, and all with or all "
            "without torch.no_grad()"
        )


class _Backward:
    """The backward exchange: gradients of outputs go to the hosts, gradients of tokens and weights come back."""

    lossless = True

    def __init__(self, plan: Plan, like: _Like, grad: torch.Tensor, graphs: dict[int, ExpertBatch], keep: bool) -> None:
        self.rows: Sequence[int] = [
            rows if came else 0 for rows, came in zip(plan.route.rows, plan.delivered, strict=True)
        ]
        self._layout, self._result_layout = _backward_layouts(like.dtype, like.hidden, plan.route.experts.shape[1])
        self.row_bytes = self._layout.row_bytes
        self.result_row_bytes = self._result_layout.row_bytes
        self._plan, self._like, self._grad, self._graphs, self._keep = plan, like, grad, graphs, keep
        self._results: dict[int, torch.Tensor] = {}
        self._weight_grads: dict[int, torch.Tensor] = {}
        self.sums = _OrderedSums(plan.parameters, sorted(graphs))

    def pack(self, peer: int, memory: Memory) -> None:
        """Write the gradients of the outputs of the batch for ``peer``."""
        gather(self._grad, self._plan.tokens(peer, self._grad), self._layout.new(memory)[0])

    def serve(self, peer: int, rows: int, batch: Memory, result: Memory) -> None:
        """Run the backward pass of the batch of ``peer``."""
        [grad] = self._layout.open(batch)
        grad = grad.to(self._like.device, wide_type(self._like.dtype))
        with _plain_saving():
            found = self._graphs[peer].gradients(grad, self._plan.parameters, self._keep)
        for block, each in zip(self._result_layout.new(result), found[:2], strict=True):
            block.copy_(each)
        self.sums.add(peer, found[2])

    def take(self, peer: int, result: Memory) -> None:
        """Keep the gradients that ``peer`` computed until all have come."""
        blocks = self._result_layout.open(result)
        self._results[peer], self._weight_grads[peer] = (each.to(self._like.device, copy=True) for each in blocks)

    def grad_x(self) -> torch.Tensor:
        """Return the gradient of the tokens, added in the order of ranks."""
        return _add_up(self._plan, self._results, self._like.empty(self._plan))

    def grad_weights(self) -> torch.Tensor:
        """Return the gradient of the weights; zero in slots that were not delivered."""
        grads = torch.zeros(self._plan.route.experts.shape, dtype=wide_type(self._like.dtype), device=self._like.device)
        for peer, grad in self._weight_grads.items():  # a slot belongs to one rank, so the order does not matter
            grads.index_add_(0, self._plan.tokens(peer, grads), grad)
        return grads


@dataclass
class _Like:
    """Type, length and device of the tokens of a call."""

    dtype: torch.dtype
    hidden: int
    device: torch.device

    def empty(self, plan: Plan) -> torch.Tensor:
        return torch.empty((len(plan.route.experts), self.hidden), dtype=self.dtype, device=self.device)


class _OrderedSums:
    """Sums of gradients of parameters, added in the order of ranks although batches may be served in any order.

    Gradients wait until those of all lower ranks with a batch have been added.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], order: Iterable[int]) -> None:
        self._parameters = parameters
        self._order = list(order)
        self._waiting: dict[int, Sequence[torch.Tensor | None]] = {}
        self._sums: list[torch.Tensor | None] = [None] * len(parameters)

    def add(self, peer: int, grads: Sequence[torch.Tensor | None]) -> None:
        """Take the gradients of one batch."""
        self._waiting[peer] = grads
        while self._order and self._order[0] in self._waiting:
            self._add(self._order.pop(0))

    def results(self) -> list[torch.Tensor]:
        """Return the sums; zeros where no batch had a gradient. Batches that did not come count as zero."""
        for peer in sorted(self._waiting):
            self._add(peer)
        return _or_zeros(self._sums, self._parameters)

    def _add(self, peer: int) -> None:
        for position, grad in enumerate(self._waiting.pop(peer)):
            had = self._sums[position]
            if grad is not None:
                self._sums[position] = grad if had is None else had + grad


class _ExchangeTokens(torch.autograd.Function):
    """The exchange with a gradient. The parameters are arguments so that torch accumulates their gradients."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, anchor: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, *_: torch.Tensor
    ) -> torch.Tensor:
        call = _Forward(plan, x, weights, keep_graphs=True)
        plan.report = plan.exchange.run(call)
        ctx.plan, ctx.graphs = plan, call.graphs
        plan.has_graph = True
        ctx.like = _Like(x.dtype, x.shape[1], x.device)
        ctx.save_for_backward(anchor)  # torch releases it after a backward pass, and then refuses a second one
        return call.output()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        assert len(ctx.saved_tensors) == 1  # raises torch's error if the graph was released
        plan: Plan = ctx.plan
        if torch.is_grad_enabled():
            error = UnsupportedError(
                f"layer {plan.name!r} of a mixture of experts has no second derivative; call backward() or grad() "
                "without create_graph=True"
            )
            plan.exchange.fail(error)
            raise error
        keep = _graph_is_kept()
        call = _Backward(plan, ctx.like, grads[0], ctx.graphs, keep)
        plan.exchange.run(call)
        if not keep:
            ctx.graphs = {}
            plan.has_graph = False
        return None, None, call.grad_x(), call.grad_weights(), *call.sums.results()


def exchange_tokens(plan: Plan, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return for each token the sum of ``weight * expert(token)`` over its delivered slots.

    All ranks of the process set call it, and, if gradients are enabled, run the backward pass, too. The result
    requires a gradient on every rank then, so that a rank whose own tokens need none still serves the others.

    Args:
        plan: of this call; gets the report.
        x: shape ``(T, hidden)``.
        weights: shape ``(T, k)``.

    Returns:
        Shape and element type of ``x``.

    Raises:
        InputFailedError: another rank failed. MismatchError: ranks differ in element type or gradient mode.
    """
    weights = weights.to(wide_type(x.dtype))
    if not torch.is_grad_enabled():
        call = _Forward(plan, x, weights, keep_graphs=False)
        plan.report = plan.exchange.run(call)
        return call.output()
    anchor = torch.zeros((), requires_grad=True)
    output: torch.Tensor = _ExchangeTokens.apply(plan, anchor, x, weights, *plan.parameters)  # type: ignore[no-untyped-call]
    return output


def _add_up(plan: Plan, results: dict[int, torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(like.shape, dtype=wide_type(like.dtype), device=like.device)
    for peer in sorted(results):
        total.index_add_(0, plan.tokens(peer, total), results[peer].to(total.dtype))
    return total.to(like.dtype)


def _or_zeros(grads: Sequence[torch.Tensor | None], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros_like(each) if grad is None else grad for grad, each in zip(grads, like, strict=True)]


def _graph_is_kept() -> bool:
    """Return True if the running backward pass keeps its graph, or if this version of torch does not tell."""
    tells = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if tells is None else bool(tells())


def _kind_text(kind: int) -> str:
    return f"{TYPES[kind // 2]} {'with' if kind % 2 else 'without'} gradients"


@contextmanager
def _plain_saving() -> Iterator[None]:
    """Save tensors of experts as they are.

    Hooks of the caller, such as those of activation checkpointing, count on the tensors that this rank's own program
    saves, and batches of other ranks come in any order.
    """
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


@contextmanager
def _no_autocast_cache() -> Iterator[None]:
    """Convert parameters anew for each batch: copies that were made without gradients would have none here."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
