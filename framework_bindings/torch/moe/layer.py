"""The mixture-of-experts layer: a gate, the exchange of tokens, and the experts of this rank."""

from __future__ import annotations

import itertools
import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import torch
from horocache.core import context
from horocache.core.process_set import ProcessSet, global_process_set, process_sets
from horocache.core.session import Session
from horocache.errors import CollectiveError, InvalidArgumentError, MismatchError, NonFiniteError
from horocache.moe.exchanges import AdaptiveTau, EarlyExit, Exchange, Maker, Options, make_exchange
from horocache.moe.exchanges.registry import chosen_exchange
from horocache.moe.groups import expert_parallel_sets
from horocache.moe.placement import Move
from horocache.moe.route import Route, check_expert_ranks, even_expert_ranks
from horocache.moe.waits import RecentWaits, gather_waits
from horocache.moe.window import agree

from ..compile.dynamo import outside
from .dispatch import TYPES, Plan, exchange_tokens, forward_layouts, wide_type
from .experts import ExpertBank
from .gate import TopKGate
from .rebalance import Replacement
from .replay import delivery_to_repeat, note_delivery
from .routing import Routing
from .statistics import Statistics

__all__ = ["MoELayer"]

_numbers = itertools.count()


@dataclass(frozen=True)
class _Connection:
    """The exchange of a layer in one session."""

    session: Session
    exchange: Exchange


class MoELayer(torch.nn.Module):
    """A mixture of experts whose experts are spread over ranks.

    Each rank passes its own tokens. The gate chooses ``k`` of ``num_experts`` experts for each token; the token
    travels to the ranks that host them, and the weighted sum of their outputs comes back. All ranks of the process set
    call the layer in the same order, also ranks without tokens or without experts, and all of them run the backward
    pass.

    Sums have a fixed order: a host adds the outputs of its experts in the order of a token's slots, and the owner of
    the token adds the hosts' results in the order of ranks. They are float32, or float64 for tokens of that type;
    results travel in the element type of the tokens.

    ``docs/explanation/mixture_of_experts.md`` explains the layer and its differences to DeepSpeed's.

    Args:
        hidden: length of a token's hidden state.
        expert_factory: makes one expert, a module that maps ``(n, hidden)`` to ``(n, hidden)``; it gets the number of
            the expert if it has an argument. It is called for the experts of this rank only.
        num_experts: experts on all ranks of the process set together.
        k: experts per token.
        capacity_factor: of the gate in training; see :class:`TopKGate` for this and the next four.
        eval_capacity_factor: of the gate in evaluation.
        min_capacity: smallest capacity of an expert, in slots.
        noisy_gate_policy: noise of the gate in training.
        drop_tokens: False: experts take any number of slots.
        expert_ranks: for each expert the rank within the process set that hosts it; any map. None: consecutive experts,
            spread evenly.
        ep_size: ranks of an expert-parallel group, a divisor of the job's size. Groups of consecutive ranks each have
            all experts. None: the ranks of ``process_set``.
        process_set: the ranks that share the experts; this rank is one of them. None: all ranks.
        exchange: how tokens travel, one of :func:`horocache.moe.exchanges.exchange_names`; or a function that makes an
            exchange of the program's own from its options. None: that of the knob ``moe_exchange``.
        epsilon: results of other ranks that a rank waits for before its countdown starts (Aristos, section 3). None:
            all. Exchanges that wait for all ranks refuse other values for this and the next two.
        tau: the countdown, in seconds. Infinite: a rank stays until it has all results and has served all batches.
            ``"adaptive"``, or a :class:`horocache.moe.exchanges.AdaptiveTau`: each rank chooses it for each call, by
            the time that its recent calls needed; the first calls lose nothing.
        t_max: the most seconds of a call. None: the limit of the job.
        max_tokens: most tokens of this rank in a call; more are an error. None: any number.
        renormalize: scale the output of a token of which some slots were lost on the way, so that the weights of the
            others have the sum of all.
        max_drop_fraction: warn once if a call loses more than this part of its slots on the way.
        assert_no_drops: a slot that is lost, for lack of capacity or on the way, is an error.
        shared_expert: a module that runs on all tokens of this rank; its output is added.
        gate: routes tokens instead of a :class:`TopKGate`: a module that takes ``(x, used_token)`` and returns a
            :class:`Routing`. It replaces the five arguments of the gate above.
        name: identifies the layer across ranks. None: the layers of a process are numbered in the order in which they
            are made, which must be the same on all ranks.
        gate_options: more arguments of :class:`TopKGate`, such as ``drop_policy`` and ``z_loss_coef``.

    Raises:
        InvalidArgumentError: an argument is out of range, or does not go with another one.
        NotInitializedError: :func:`horocache.init` was not called before.
        UnsupportedError: the exchange cannot do what the arguments ask for.
    """

    def __init__(
        self,
        hidden: int,
        expert_factory: Callable[..., torch.nn.Module],
        num_experts: int,
        k: int = 1,
        capacity_factor: float | None = 1.0,
        eval_capacity_factor: float | None = 1.0,
        min_capacity: int = 8,
        noisy_gate_policy: str | None = None,
        drop_tokens: bool = True,
        *,
        expert_ranks: Sequence[int] | None = None,
        ep_size: int | None = None,
        process_set: ProcessSet | None = None,
        exchange: str | Maker | None = None,
        epsilon: int | None = None,
        tau: float | AdaptiveTau | Literal["adaptive"] = math.inf,
        t_max: float | None = None,
        max_tokens: int | None = None,
        renormalize: bool = False,
        max_drop_fraction: float | None = None,
        assert_no_drops: bool = False,
        shared_expert: torch.nn.Module | None = None,
        gate: torch.nn.Module | None = None,
        name: str | None = None,
        **gate_options: Any,
    ) -> None:
        super().__init__()
        if gate is None:
            capacity = (capacity_factor, eval_capacity_factor, min_capacity)
            gate = TopKGate(hidden, num_experts, k, *capacity, noisy_gate_policy, drop_tokens, **gate_options)
        elif gate_options:
            raise InvalidArgumentError(
                f"the arguments {sorted(gate_options)} are of a TopKGate; leave them out, or gate"
            )
        self.gate = gate
        self.hidden, self.num_experts, self.k = hidden, num_experts, k
        self.process_set, holders = _sets(ep_size, process_set)
        ranks = self.process_set.size()
        hosts = even_expert_ranks(num_experts, ranks) if expert_ranks is None else expert_ranks
        self.expert_ranks = check_expert_ranks(hosts, num_experts, ranks)
        self._name_is_given = name is not None
        self.name = name if name is not None else f"layer{next(_numbers)}"
        self.early_exit = EarlyExit(epsilon, tau, t_max)
        self.early_exit.check_ranks(ranks, self.name)
        self.exchange = chosen_exchange(exchange, self.early_exit)
        self.max_tokens = _checked_max_tokens(max_tokens)
        self.max_drop_fraction = _checked_fraction(max_drop_fraction)
        self.renormalize, self.assert_no_drops = renormalize, assert_no_drops
        self.experts = ExpertBank(expert_factory, self.expert_ranks, self.process_set.rank(), holders)
        self.shared_expert = shared_expert
        self.reset_statistics()
        self._connection: _Connection | None = None
        self._plans: weakref.WeakSet[Plan] = weakref.WeakSet()  # of calls whose outputs are alive

    @outside
    def forward(
        self, x: torch.Tensor, used_token: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Send this rank's tokens through their experts.

        Args:
            x: hidden states, shape ``(..., hidden)``, of a floating-point type that is equal on all ranks. Ranks may
                have different numbers of tokens, also 0.
            used_token: one value for each token, of any shape with that many elements: 0 masks the token. None: all are
                used.

        Returns:
            The output, of the shape and element type of ``x``, zero for tokens without a delivered slot; the auxiliary
            loss of the gate, a scalar; and the slots that chose each expert, int64 of shape ``(num_experts,)``. The
            last two are those of this rank's tokens, and do not depend on what is lost on the way.

        Raises:
            InvalidArgumentError, NonFiniteError: the input of this rank is wrong. Nothing has been sent, and the other
                ranks raise InputFailedError.
            InputFailedError: another rank failed in this call; names it and its error.
            MismatchError: ranks made the layer with different arguments, or call it with different element types;
                names two ranks and both values.
            CollectiveError: with ``assert_no_drops``, a slot was lost on the way.
        """
        exchange = self._connect(x)
        try:
            tokens = self._checked_tokens(x)
            used = None if used_token is None else used_token.reshape(-1)
            routing = self._checked_routing(self.gate(tokens, used), tokens)
            route = Route(routing.topk_idx.cpu().numpy(), self.expert_ranks, self.process_set.size())
            repeat = delivery_to_repeat(self.name, route.rows)
        except Exception as error:
            exchange.fail(error)
            raise
        plan = Plan(self.name, exchange, self.process_set, self.experts, route, self.early_exit.drops, repeat)
        self._plans.add(plan)
        output = exchange_tokens(plan, tokens, routing.topk_weights)
        note_delivery(self.name, route.rows, plan.delivered if repeat is None else repeat)
        if repeat is None:
            self._account(plan, routing)
        if self.renormalize:
            output = self._renormalized(output, plan, routing)
        if self.shared_expert is not None:
            output = output + self.shared_expert(tokens)
        return output.view(x.shape), routing.aux_loss, routing.expert_counts

    def statistics(self) -> Statistics:
        """Return a copy of the layer's counters of slots."""
        return self._statistics.copy()

    def reset_statistics(self) -> None:
        """Set the counters to zero, forget the waits, and let the warning of ``max_drop_fraction`` appear again."""
        ranks = self.process_set.size()
        self._statistics = Statistics.empty(ranks, self.num_experts)
        self._waits = RecentWaits(ranks)
        self._warned = False

    def wait_matrix(self, quantile: float = 0.5) -> npt.NDArray[np.float64]:
        """Return how long the ranks wait for each other. All ranks of the process set call it at the same place.

        Args:
            quantile: of the last 64 forward calls of each rank, from 0 to 1: 0.5 for the median, 1 for the longest.
                Equal on all ranks.

        Returns:
            Shape ``(n, n)`` for the n ranks of the process set, in seconds, equal on all ranks. Element (i, j) is the
            wait of rank i for rank j in a call: a large column shows a rank that is late for all others. Zeros before
            the first call. Exchanges that wait for all ranks at once have equal values in a row.

        Raises:
            InvalidArgumentError: ``quantile`` is out of range. MismatchError: ranks ask for different ones.
        """
        return gather_waits(self.name, self._waits, quantile, self.process_set)

    def rebalance(
        self,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
        expert_ranks: Sequence[int] | None = None,
        *,
        rates: npt.ArrayLike | None = None,
        memory: npt.ArrayLike | None = None,
    ) -> tuple[Move, ...]:
        """Move experts between ranks, with their optimizers' state, which keep their bits.

        All ranks of the process set call it between two steps, after ``zero_grad()``. With expert-parallel groups all
        ranks of the job call it, and all groups get the same map. Experts keep their numbers, so that ``state_dict``
        has the same keys on all ranks together. The next call of the layer connects the ranks anew. If a rank has an
        error, all ranks raise one, and nothing has moved.

        Later calls have the same bits as without the move for ``k=1``, and for ``k=2`` with float32 and float64 tokens.
        Otherwise they differ by rounding, because the map decides the order of sums.

        ``docs/explanation/mixture_of_experts.md`` says what moves and what cannot.

        Args:
            optimizer: one optimizer of the layer's experts, or all of them, such as a ``DistributedOptimizer``; None if
                the experts are not trained. Parameters come and go in its groups, in place.
            expert_ranks: the new map: for each expert the rank within the process set. None: a map that balances
                :attr:`Statistics.expert_slots` of all ranks, near the present one; see
                :func:`horocache.moe.placement.improved_map`.
            rates: for a computed map: the speed of each rank, in any unit. None: equal.
            memory: for a computed map: the experts that each rank can hold. None: as many as the fullest has now.

        Returns:
            The experts that have moved, with their old and new ranks within the process set.

        Raises:
            InvalidArgumentError: ranks differ in their arguments; an expert's parameter has a gradient that is not
                zero, or a backward pass is to follow; an optimizer is missing, or has other groups or options on
                another rank; the layer was pickled and has no ``expert_factory``.
            UnsupportedError: ``prepare_ddp`` has prepared the layer, an optimizer keeps state that is not of one
                parameter each, or a tensor is sharded or not dense.
            PlacementError: the ranks have no memory for all experts.
            InputFailedError: another rank raised one of these errors; names it.
        """
        session_set = self.process_set
        if session_set.size() > 1:
            session_set = _registered(session_set, self.name)
        everyone = session_set if self.experts.holders is None else global_process_set
        return Replacement(self, session_set, everyone, optimizer).run(expert_ranks, rates, memory)

    def close(self) -> None:
        """Give back the memory of the exchange. The next call connects the layer again.

        All ranks of the process set call it at the same place of their programs, with no backward pass of the layer
        left to run.
        """
        if self._connection is not None:
            self._connection.exchange.close()
            self._connection = None

    def extra_repr(self) -> str:
        """Return the arguments that torch prints with the module."""
        return (
            f"name={self.name!r}, num_experts={self.num_experts}, k={self.k}, exchange={self._exchange_name()!r}, "
            f"expert_ranks={self.expert_ranks}, ranks={self.process_set.ranks}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the exchange and the calls, which belong to this layer and session."""
        state = {**self.__dict__, "_connection": None}
        del state["_plans"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._plans = weakref.WeakSet()
        if not self._name_is_given:  # a copy beside the original has a name of its own
            self.name = f"layer{next(_numbers)}"

    def _has_graph(self) -> bool:
        """Return True if a backward pass of an earlier call may still follow: its outputs are alive."""
        return any(plan.has_graph for plan in self._plans)

    def _connect(self, x: Any) -> Exchange:
        """Return the exchange; the first call of a session compares the arguments of all ranks."""
        session = context.current()
        if self._connection is not None and self._connection.session is session:
            return self._connection.exchange
        dtype = x.dtype if isinstance(x, torch.Tensor) and x.dtype in TYPES else None
        if self.process_set.size() > 1:
            self.process_set = _registered(self.process_set, self.name)
            dtype = self._compare(dtype)
        wide = wide_type(torch.float32 if dtype is None else dtype)
        batch, result = forward_layouts(wide, self.hidden, self.k)
        options = Options(
            self.name,
            self.process_set,
            tuple(rank in self.expert_ranks for rank in range(self.process_set.size())),
            max(batch.row_bytes, result.row_bytes),
            batch.row_bytes,  # a result of the backward pass has the gradients of tokens and weights
            self.max_tokens,
            self.early_exit,
        )
        self._connection = _Connection(session, make_exchange(self.exchange, options))
        return self._connection.exchange

    def _exchange_name(self) -> str:
        return self.exchange if isinstance(self.exchange, str) else getattr(self.exchange, "__name__", "of the program")

    def _compare(self, dtype: torch.dtype | None) -> torch.dtype | None:
        """Compare the facts of the layer over its ranks; return the element type of tokens.

        The type is None on a rank whose input is wrong in its first call. It gets that of the other ranks, so that the
        exchange is made alike on all.
        """
        facts = {
            "hidden": self.hidden,
            "num_experts": self.num_experts,
            "k": self.k,
            "expert_ranks": self.expert_ranks,
            "exchange": self._exchange_name(),
            "epsilon": self.early_exit.epsilon,
            "tau": self.early_exit.tau,
            "t_max": self.early_exit.limit,
            "max_tokens": self.max_tokens,
        }
        gathered = [own["type"] for own in agree(self.name, facts, {"type": dtype}, self.process_set)]
        found = {each: rank for rank, each in zip(self.process_set.ranks, gathered, strict=True) if each is not None}
        if len(found) > 1:
            (one, first), (other, second), *_ = found.items()
            raise MismatchError(
                f"layer {self.name!r}: tokens of rank {first} are {one}, and those of rank {second} are {other}; "
                "convert them to one type on all ranks"
            )
        return next(iter(found), None)

    def _checked_tokens(self, x: Any) -> torch.Tensor:
        rank = f"rank {context.rank()}, layer {self.name!r}"
        if not isinstance(x, torch.Tensor) or x.dtype not in TYPES:
            found = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise InvalidArgumentError(
                f"{rank}: hidden states are a tensor of one of the types {', '.join(map(str, TYPES))}, not {found}; "
                "convert them"
            )
        if x.dim() == 0 or x.shape[-1] != self.hidden:
            raise InvalidArgumentError(
                f"{rank}: hidden states have shape {tuple(x.shape)}, but the layer was made for (..., {self.hidden}); "
                "reshape them, or make the layer with another hidden"
            )
        tokens = x.reshape(-1, self.hidden)
        if self.max_tokens is not None and len(tokens) > self.max_tokens:
            raise InvalidArgumentError(
                f"{rank}: {len(tokens)} tokens came, but the layer was made with max_tokens={self.max_tokens}; raise it"
            )
        return tokens

    def _checked_routing(self, routing: Routing, tokens: torch.Tensor) -> Routing:
        """Check what a gate returned, which may be the program's own."""
        rank = f"rank {context.rank()}, layer {self.name!r}"
        shape = (len(tokens), self.k)
        found = tuple(routing.topk_idx.shape), tuple(routing.topk_weights.shape)
        if found != (shape, shape) or routing.topk_idx.is_floating_point():
            raise InvalidArgumentError(
                f"{rank}: the gate returned experts ({routing.topk_idx.dtype}) and weights of the shapes {found}; both "
                f"have the shape {shape} of (tokens, k), and experts are integers"
            )
        good = routing.topk_weights.detach().isfinite().all(1)
        if not bool(good.all()):
            token = int((~good).nonzero()[0])
            raise NonFiniteError(
                f"{rank}: the gate's weights of token {token} are {routing.topk_weights[token].tolist()}; they must be "
                "finite: look for the optimizer step that made the gate diverge"
            )
        dropped = int(routing.dropped.sum())
        if self.assert_no_drops and dropped:
            raise CollectiveError(
                f"{rank}: {dropped} slots are over the capacity of their experts, and assert_no_drops is set; raise "
                "capacity_factor, or make the layer with drop_tokens=False"
            )
        return routing

    def _account(self, plan: Plan, routing: Routing) -> None:
        assert plan.report is not None
        slots = plan.route.slots
        lost = self._statistics.count(slots, plan.route.expert_slots(), int(routing.dropped.sum()), plan.report)
        self._waits.add(plan.report.waited)
        if not lost:
            return
        causes = {
            self.process_set.ranks[peer]: f"{slots[peer]} ({outcome.name.lower()})"
            for peer, outcome in enumerate(plan.report.outcomes)
            if slots[peer] and not plan.delivered[peer]
        }
        text = (
            f"rank {context.rank()}, layer {self.name!r}: {lost} of {sum(slots)} slots were lost on the way, by the "
            f"rank of their experts: {causes}"
        )
        if self.assert_no_drops:
            raise CollectiveError(
                f"{text}; assert_no_drops is set: raise epsilon or tau, or find out why ranks are late"
            )
        limit = self.max_drop_fraction
        if limit is not None and lost > limit * sum(slots) and not self._warned:
            self._warned = True
            warnings.warn(
                f"{text}; that is more than max_drop_fraction={limit}: raise epsilon or tau. Later calls of this "
                "layer do not warn; see MoELayer.statistics()",
                RuntimeWarning,
                stacklevel=3,
            )

    def _renormalized(self, output: torch.Tensor, plan: Plan, routing: Routing) -> torch.Tensor:
        slots = plan.route.slots
        came = plan.delivered if plan.repeat is None else plan.repeat
        if all(had or not number for had, number in zip(came, slots, strict=True)):
            return output
        weights = routing.topk_weights
        mask = torch.from_numpy(plan.route.delivered_slots(came)).to(weights.device)
        whole, part = weights.sum(1, keepdim=True), (weights * mask).sum(1, keepdim=True)
        factor = torch.where(part == whole, 1.0, whole / part.clamp(min=torch.finfo(weights.dtype).eps))
        return (output.to(weights.dtype) * factor).to(output.dtype)


def _sets(ep_size: int | None, process_set: ProcessSet | None) -> tuple[ProcessSet, ProcessSet | None]:
    """Return the ranks that share the experts, and those that hold the same ones; None if this rank alone does."""
    context.current()  # raises the error that says to call init()
    if ep_size is not None and process_set is not None:
        raise InvalidArgumentError(f"give ep_size ({ep_size}) or process_set ({process_set}), not both")
    if ep_size is None:
        chosen = global_process_set if process_set is None else process_set
        chosen.rank()  # raises if this rank is not in it
        return chosen, None
    group, holders = expert_parallel_sets(ep_size)
    return group, holders if holders.size() > 1 else None


def _registered(wanted: ProcessSet, layer: str) -> ProcessSet:
    """Return the set of this session with the ranks of a set that may be a copy, or of an earlier session."""
    known = [each for each in process_sets() if each.ranks == wanted.ranks]
    if not known:
        raise InvalidArgumentError(
            f"rank {context.rank()}, layer {layer!r}: the ranks {wanted.ranks} of its process set are not registered "
            "in this job; give them to init(process_sets=[...]), or call add_process_set()"
        )
    return known[0]


def _checked_max_tokens(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
        raise InvalidArgumentError(f"max_tokens is a number of tokens of at least 1, or None, not {value!r}")
    return None if value is None else int(value)


def _checked_fraction(value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1):
        raise InvalidArgumentError(f"max_drop_fraction is a number from 0 to 1, or None, not {value!r}")
    return None if value is None else float(value)
